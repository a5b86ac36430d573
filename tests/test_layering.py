"""The import order of the layers, as ARCHITECTURE.md draws it, read from the source without running it.

Holds for imports inside functions too, and for those by a name in a string: an import that comes late is still a dependency.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "unbroken"
LAYERS = (
    {"errors", "types"},
    {"state"},
    {"format"},
    {"store"},
    {"repo"},
    {"engine"},
    {"capture"},
    {"buffers"},
    {"adapters"},
    {"report", "proving"},
    {"inspection"},
    {"ui"},
    {"cli"},
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
FACES = {
    "", "__main__", "sb3", "rllib", "ray_train", "tune", "lightning", "dcp", "distributed", "pretrained", "nemo_gym", "neutral", "envs", "testing", "trackers",
}  # fmt: skip
"""Public faces, which gather what lies below, and the suites shipped for those who implement a contract."""
ADAPTERS = {
    "sb3": {"sb3"},
    "loop": {"loop", "delegate", "untracked"},
    "rllib": {"rllib"},
    "ray_train": {"ray_train"},
    "tune": {"tune"},
    "lightning": {"lightning"},
    "dcp": {"dcp"},
    "distributed": {"distributed"},
    "pretrained": {"pretrained"},
    "nemo_gym": {"nemo_gym"},
    "neutral": {"neutral"},
    "trackers": {"trackers"},
}
"""Each adapter and the modules or folders in `adapters/` that are its own."""
SHARED = {"trackers"}
"""What all adapters of training loops may use: it adapts to something that any of them may log to."""
SUITES = {
    "store_suite": "store",
    "faulty_store": "store",
    "faulty_system": "store",
    "returning_faults": "store",
    "network_disk": "store",
    "recording": "store",
    "disk_states": "store",
    "env_oracle": "capture",
}
"""Each module in `testing/` and the highest layer whose contract it is about."""
FRAMEWORKS = frozenset(
    {
        "torch",
        "gymnasium",
        "stable_baselines3",
        "sb3_contrib",
        "ale_py",
        "mujoco",
        "Box2D",
        "ray",
        "lightning",
        "nemo_gym",
    }
)
TRACKERS = frozenset({"tensorboard", "tensorboardX", "wandb", "mlflow"})
"""Imported like frameworks. Their names are words of the settings, which the engine has to know."""
FILE_FORMATS = {Path("engine/monitoring/scalars.py"): {"tensorboard"}}
"""Where a tracker's library does nothing but write files, which no training has to do with; see ARCHITECTURE.md."""
LEADS_BACK = {
    ("unbroken.engine.observer", "unbroken.engine.monitoring.monitor"),
    ("unbroken.adapters.sb3.policy", "unbroken.adapters.sb3.workers"),
    ("unbroken.adapters.rllib.policy", "unbroken.adapters.rllib.actors"),
}
"""Imports of a module by one that it imports: each stands inside the one function that needs it."""
NAMED = re.compile(rf"\b({'|'.join(sorted(FRAMEWORKS))}|sb3|SB3|gym|rllib|tune)\b")

FILES = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))
every_file = pytest.mark.parametrize("file", FILES, ids=str)


def layer_of(file: Path) -> str:
    first = file.with_suffix("").parts[0]
    return "" if first == "__init__" else first


def imports(source: str | ast.Module, package: list[str]) -> Iterator[str]:
    """Yield the dotted name of all that `source`, a module of `package`, imports."""
    for node in ast.walk(ast.parse(source) if isinstance(source, str) else source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = [*base, *([node.module] if node.module else [])]
            yield from (".".join([*module, alias.name]) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"import_module", "__import__"}:
                for text in ast.walk(node.args[0]):
                    if isinstance(text, ast.Constant) and isinstance(text.value, str):
                        yield text.value


def imports_of(file: Path) -> set[str]:
    return set(imports((SOURCE / file).read_text(), ["unbroken", *file.parent.parts]))


def run_time_imports(file: Path) -> set[str]:
    """Return what a module imports, but for what only a type checker sees."""
    tree = ast.parse((SOURCE / file).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    return set(imports(tree, ["unbroken", *file.parent.parts]))


def strings(source: str) -> Iterator[str]:
    """Yield every string of the program that is no docstring."""
    tree = ast.parse(source)
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


@every_file
def test_imports_go_downward(file: Path) -> None:
    here = layer_of(file)
    assert here in RANK or here in FACES, (
        f"{here} stands in no layer: add it to LAYERS and to ARCHITECTURE.md"
    )
    for name in imports_of(file):
        parts = name.split(".")
        if parts[0] != "unbroken" or here in FACES:
            continue
        there = parts[1]
        assert there in RANK, f"{name} is a public face, above all layers"
        assert RANK[there] <= RANK[here], f"{here} must not know {name}"


@pytest.mark.parametrize("file", [f for f in FILES if layer_of(f) == "adapters"], ids=str)
def test_adapters_do_not_know_each_other(file: Path) -> None:
    part = file.with_suffix("").parts[1]
    if part == "__init__":
        assert imports_of(file) == set()
        return
    own = next((parts for parts in ADAPTERS.values() if part in parts), None)
    assert own is not None, f"{part} belongs to no adapter: add it to ADAPTERS"
    known = {name.split(".")[2] for name in imports_of(file) if name.startswith("unbroken.adapters.")}
    assert known <= own | SHARED


def test_no_module_imports_what_imports_it() -> None:
    names = {
        ".".join(["unbroken", *file.with_suffix("").parts]).removesuffix(".__init__"): file for file in FILES
    }
    graph = {
        name: {one if one in names else one.rpartition(".")[0] for one in run_time_imports(file)}
        & names.keys() - {name}
        for name, file in names.items()
    }
    for name, other in LEADS_BACK:
        graph[name].remove(other)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" is imported by ".join(error.args[1]))
    for name, other in LEADS_BACK:  # each still does
        with pytest.raises(CycleError):
            TopologicalSorter({**graph, name: graph[name] | {other}}).prepare()


def test_every_engine_that_an_adapter_makes_looks_for_trackers() -> None:
    made = [
        (str(file), {keyword.arg for keyword in node.keywords})
        for file in FILES
        if layer_of(file) == "adapters"
        for node in ast.walk(ast.parse((SOURCE / file).read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "CheckpointEngine"
    ]
    assert len(made) > 5
    assert [file for file, given in made if "finders" not in given] == []


@pytest.mark.parametrize("file", [f for f in FILES if layer_of(f) == "testing"], ids=str)
def test_what_is_shipped_for_tests_knows_its_contract_and_what_lies_below(file: Path) -> None:
    highest = RANK[SUITES[file.stem]] if file.stem != "__init__" else -1
    for name in imports_of(file):
        parts = name.split(".")
        if parts[0] == "unbroken" and parts[1] != "testing":
            assert RANK[parts[1]] <= highest, f"{file} must not know {name}"


@every_file
def test_frameworks_are_imported_in_capture_and_adapters_only(file: Path) -> None:
    if layer_of(file) not in {"capture", "adapters"}:
        found = {name.split(".")[0] for name in imports_of(file)} & (FRAMEWORKS | TRACKERS)
        assert found == FILE_FORMATS.get(file, set())


@pytest.mark.parametrize("file", [f for f in FILES if RANK.get(layer_of(f), 99) <= RANK["engine"]], ids=str)
def test_no_frameworks_name_in_the_engine_and_below(file: Path) -> None:
    """What is special about a framework is data that its adapter hands over."""
    assert [text for text in strings((SOURCE / file).read_text()) if NAMED.search(text)] == []


def test_the_reader_sees_late_and_relative_imports_and_skips_docstrings() -> None:
    source = '"""torch"""\ndef f():\n    import torch.nn\n    from ..repo import x\n    from . import y\n    return "gym"\n'
    source += 'def g(name):\n    importlib.import_module("ray.tune")\n    import_module(f"wandb.{name}")\n'
    assert set(imports(source, ["unbroken", "state"])) == {
        "torch.nn", "unbroken.repo.x", "unbroken.state.y", "ray.tune", "wandb.",
    }  # fmt: skip
    assert list(strings(source)) == ["gym", "ray.tune", "wandb."]
