"""The reference of the public names: which there are and in what order; what each says is its docstring.

Invariant: every name that `unbroken` or a face gathers stands on the page once, below the face that a script imports.
"""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "unbroken"
FACES = {
    "unbroken": "For loops of your own, and for all frameworks",
    "unbroken.sb3": "Stable-Baselines3",
    "unbroken.rllib": "RLlib",
    "unbroken.tune": "Ray Tune",
    "unbroken.ray_train": "Ray Train",
    "unbroken.lightning": "Lightning",
    "unbroken.distributed": "Several processes of your own",
    "unbroken.dcp": "torch's distributed checkpoint",
    "unbroken.pretrained": "Models that save themselves",
    "unbroken.nemo_gym": "NeMo Gym",
    "unbroken.trackers": "TensorBoard, W&B, MLflow",
    "unbroken.neutral": "Out of one framework, into another",
    "unbroken.envs": "Environments",
    "unbroken.testing.store_suite": "For those who write a store",
    "unbroken.testing.env_oracle": "For those who write an environment",
}
"""Faces and what they are for; one that is not listed comes last, under its own name."""
INTRODUCTION = """\
# Public names

Each name is imported from the module that its section names: `from unbroken.sb3 import CheckpointCallback`. Importing
`unbroken` imports no framework. [Errors and warnings](errors.md) have a page of their own, and so do the
[settings](configuration.md), which every face takes as keywords. All else in the package is its own business, and changes
without notice.
"""


def faces() -> list[str]:
    """Return the modules that gather public names: what the package holds beside its layers, with an `__all__`."""
    files = [SOURCE / "__init__.py", *sorted(SOURCE.glob("*.py")), *sorted(SOURCE.glob("testing/*.py"))]
    found = [module for file in dict.fromkeys(files) if gathered(module := _module(file))]
    places = {module: place for place, module in enumerate(FACES)}
    return sorted(found, key=lambda module: (places.get(module, len(places)), module))


def _module(file: Path) -> str:
    parts = file.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def gathered(module: str) -> dict[str, str]:
    """Return the names in a face's `__all__`, each with the place where it is defined. Nothing is imported."""
    path = SOURCE.parent.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(file.read_text())
    names: list[str] = []
    homes: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
        ):
            names = ast.literal_eval(node.value)
        elif isinstance(node, ast.ImportFrom) and node.module:
            homes |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return {name: homes.get(name, f"{module}.{name}") for name in names}


def page() -> str:
    """Return the whole page."""
    parts = [INTRODUCTION]
    shown: set[str] = set()
    for module in faces():
        names = gathered(module)
        title = f"{FACES[module]}: `{module}`" if module in FACES else f"`{module}`"
        parts.append(f"## {title}\n")
        again = [name for name in names if names[name] in shown]
        if again:
            parts.append(f"Also here: {', '.join(f'`{name}`' for name in again)}, as above.\n")
        for name, home in names.items():
            if name not in again:
                parts.append(f"::: {home}\n")
        shown |= set(names.values())
    return "\n".join(parts)
