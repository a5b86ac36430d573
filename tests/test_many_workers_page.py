"""The page on many workers: what is cheap runs as it stands, what needs Ray is what its example holds.

A Python block that begins with a file's name is kept under it; a console block is what a person types, and a line
that ends in `&` runs beside those after it. Links, names and options exist.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

import pytest

import unbroken.errors
from tests.pages import ROOT, Block, Stage, blocks, every_block, not_in_its_source, source_of
from unbroken.errors import UnbrokenError

PAGE = "docs/many-workers.md"
TEXT = (ROOT / PAGE).read_text()
OWN = [block for block in every_block(PAGE) if block.kind in ("python", "console") and block.source is None]
OURS = frozenset({
    "allow_changed", "every", "hold", "keep_last", "max_loss", "max_overhead", "replicated", "seconds", "start_timeout",
    "steps", "strict", "sync_timeout", "trial", "trust", "world",
})  # fmt: skip
"""Options that are ours and nobody else's here."""
CODE = re.findall(r"`([^`\n]+)`", TEXT)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """The directory that all blocks share."""
    for name in ("torch", "lightning", "safetensors"):
        pytest.importorskip(name)
    return Stage(tmp_path_factory.mktemp("many") / "page")


def keep(block: Block, stage: Stage) -> None:
    """A script is run by the console block after it."""
    assert block.file
    (stage.folder / block.file).write_text(block.text)


@pytest.mark.parametrize("number", range(len(OWN)))
def test_blocks_run_in_their_order(number: int, stage: Stage) -> None:
    block = OWN[number]
    if block.kind == "python":
        keep(block, stage)
    else:
        stage.play(block)


def test_torchrun_starts_killed_ranks_again_as_the_page_says(stage: Stage) -> None:
    (script,) = [block.text for block in OWN if block.file == "ddp.py"]
    loop = "for step in run.steps(500):\n"
    killed = (
        "    if step == 250 and dist.get_rank() == 1 and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "        run.wait()  # the checkpoint of step 200 is there\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert loop in script
    script = (
        script.replace(loop, loop + killed)
        .replace("seconds=60", "steps=100")
        .replace("runs/ddp", "runs/killed")
    )
    (stage.folder / "killed.py").write_text(f"import os\nimport signal\n{script}")
    variable = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
    assert variable in CODE
    said = stage.run(f"{variable} torchrun --standalone --nproc-per-node 2 --max-restarts=3 killed.py")
    assert "goes on at step 200 from the newest checkpoint" in said


def test_every_script_of_the_page_is_run() -> None:
    scripts = [block.file for block in OWN if block.kind == "python"]
    typed = "\n".join(block.text for block in OWN if block.kind == "console")
    assert scripts
    assert [script for script in scripts if script not in typed] == []


@pytest.mark.parametrize("page", [PAGE, "README.md"])
def test_what_is_taken_from_an_example_stands_in_it(page: str) -> None:
    quoted = [(text, source) for _, text in blocks(page) if (source := source_of(text)) is not None]
    assert {source.name for _, source in quoted} >= {"rllib_ppo.py", "ray_train_ppo.py", "tune_pbt.py"}
    assert [line for text, source in quoted for line in not_in_its_source(text, source)] == []


def test_every_error_it_names_exists() -> None:
    told = set(
        re.findall(r"^\| `(\w+)` \| ", TEXT.partition("## When something fails")[2], flags=re.MULTILINE)
    )
    assert {"RankMissing", "ReplicasDiffer"} <= told
    assert [name for name in told if not issubclass(getattr(unbroken.errors, name), UnbrokenError)] == []


def test_every_name_of_ours_on_it_exists() -> None:
    """`unbroken.a.b` wherever it stands in code; a face whose framework is not installed is left out."""
    text = "\n".join([*CODE, *(text for kind, text in blocks(PAGE) if kind == "python")])
    names = set(re.findall(r"\bunbroken((?:\.\w+)+)", text))
    assert {".rllib.checkpoints", ".ray_train.start", ".tune.Trainable", ".dcp.StorageReader"} <= names
    missing: list[str] = []
    for name in sorted(names):
        parts = name[1:].split(".")
        try:
            found: Any = import_module(f"unbroken.{parts[0]}") if parts[0][0].islower() else unbroken
        except ImportError as error:
            if (error.name or "").startswith("unbroken"):
                missing.append(name)
            continue
        for part in parts[1 if found is not unbroken else 0 :]:
            found = getattr(found, part, None)
        if found is None:
            missing.append(name)
    assert missing == []


def section(title: str) -> str:
    """Return what stands under a heading."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", TEXT, flags=re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(
    ("title", "framework", "faces"),
    [
        ("Ranks of your own", "torch", ["distributed.world", "Run", "Every"]),
        ("Ray Train", "ray.train", ["ray_train.start"]),
        ("Ray Tune", "ray.tune", ["tune.start"]),
        ("RLlib", "ray.rllib", ["rllib.checkpoints"]),
        ("Lightning", "lightning", ["lightning.CheckpointCallback", "Every"]),
        ("Sharded models", "torch", ["dcp.StorageWriter", "dcp.StorageReader", "distributed.world", "Run"]),
    ],
)
def test_options_of_ours_that_it_names_exist(title: str, framework: str, faces: list[str]) -> None:
    pytest.importorskip(framework)
    known: set[str] = set()
    for face in faces:
        module, _, name = face.rpartition(".")
        owner = import_module(f"unbroken.{module}" if module else "unbroken")
        known |= set(inspect.signature(getattr(owner, name)).parameters)
    code = re.findall(r"`([^`\n]+)`", section(title))
    named = {option for text in code for option in re.findall(r"\b(\w+)=", text)}
    assert named & OURS <= known


def test_the_options_of_world_are_in_its_table_with_their_defaults() -> None:
    from unbroken.distributed import world

    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", section("Ranks of your own"), flags=re.MULTILINE))
    real = {name: parameter.default for name, parameter in inspect.signature(world).parameters.items()}
    assert rows.keys() == real.keys() - {"environment"}
    for name in ("sync_timeout", "start_timeout"):
        assert rows[name] == f"`{real[name]}`"
