"""Finds the class of a server from its directory, as NeMo Gym does: the user's directory first, then what is installed.

Every server's file ends in `SomeServer.run_webserver()`; the name is read from the source, which is not run for that. Of a file
that wraps by itself, `checkpointed(SomeServer).run_webserver()`, the class inside is meant.
"""

from __future__ import annotations

import ast
import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unbroken.errors import ConfigError, installing


@dataclass(frozen=True, slots=True)
class Located:
    """Where a server's class is. `class_name` is empty where the source does not tell."""

    directory: Path
    module: str
    class_name: str = ""

    def load(self, *, project: Path) -> Any:
        """Import the class, with its own directory in front of the path, as `python app.py` has it.

        Raises:
            ConfigError: there is no such class, or several.
        """
        for entry in (str(project), str(self.directory)):  # the last one ends up in front
            if entry in sys.path:
                sys.path.remove(entry)
            sys.path.insert(0, entry)
        try:
            module = importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{self.module} cannot be imported: {error}.",
                hint=f"Install what that server needs ({self.directory / 'requirements.txt'}) into this environment.",
            ) from error
        if self.class_name:
            found = getattr(module, self.class_name, None)
            if found is None:
                raise ConfigError(
                    f"{self.module} has no {self.class_name!r}.", hint="Give it as `module:Class`."
                )
            return found
        candidates = {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, type) and hasattr(value, "run_webserver") and value.__module__ == self.module
        }
        if len(candidates) != 1:
            listed = ", ".join(sorted(candidates)) or "none"
            raise ConfigError(
                f"{self.module} does not say which class serves; there are: {listed}.",
                hint=f"Name it: `--class {self.module}:{next(iter(sorted(candidates)), 'Class')}`, or `class` under `unbroken` in its settings.",
            )
        return next(iter(candidates.values()))

    @property
    def uses_ray(self) -> bool:
        """Whether a file of the server asks Ray for workers, so that it cannot do without."""
        return any("ray.remote" in path.read_text("utf-8", "replace") for path in self.directory.glob("*.py"))


def locate(
    kind: str, directory: str, entrypoint: str, *, project: Path, installed: Path, wanted: str = ""
) -> Located:
    """Return where the class of a server is. `wanted` is `Class` or `module:Class`, where a user says it.

    Raises:
        ConfigError: there is no such directory, or its file cannot be imported by name.
    """
    looked = (project / kind / directory, installed / kind / directory)
    home = next((path for path in looked if (path / entrypoint).is_file()), None)
    if ":" in wanted:
        module, _, name = wanted.partition(":")
        return Located(home or project, module, name)
    if home is None:
        raise ConfigError(
            f"There is no {kind}/{directory}/{entrypoint}; looked in {project} and {installed}.",
            hint="Start in the directory that holds it, or install the package that brings it.",
        )
    parts = Path(entrypoint).with_suffix("").parts
    if not all(part.isidentifier() for part in parts) or not entrypoint.endswith(".py"):
        raise ConfigError(
            f"The entrypoint {entrypoint!r} of {kind}/{directory} cannot be imported by name.",
            hint="Name the class: `class: module:Class` under `unbroken` in its settings.",
        )
    return Located(home, ".".join((kind, directory, *parts)), wanted or served_class(home / entrypoint))


def install_root() -> Path:
    """Return the directory that holds NeMo Gym's own servers.

    Raises:
        ConfigError: NeMo Gym is not installed here.
    """
    try:
        gym: Any = importlib.import_module("nemo_gym")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"NeMo Gym is not installed in {sys.prefix}.",
            hint=f"{installing('nemo-gym==0.4.*')}, with Python 3.12.",
        ) from error
    return Path(gym.PARENT_DIR)


def served_class(path: Path) -> str:
    """Return the name of the class that a server's file runs, or an empty text where it does not tell one.

    Raises:
        ConfigError: it is no Python.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise ConfigError(f"{path} cannot be read: {error}.", hint="Correct it.") from error
    names: set[str] = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "run_webserver"
        ):
            served = node.func.value
            if isinstance(served, ast.Call) and served.args:
                served = served.args[0]
            if isinstance(served, ast.Name):
                names.add(served.id)
    return names.pop() if len(names) == 1 else ""
