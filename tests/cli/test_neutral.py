"""`export --to neutral`: what the command says, what it refuses, and what a reader does with a damaged export."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.command import unbroken
from unbroken import Ring, Run, neutral
from unbroken.errors import ConfigError, CorruptObject, UnbrokenError, UnsupportedFormat
from unbroken.format import neutral as documents

SCHEMA = Path(__file__).parents[2] / "schema/unbroken-neutral-1.json"
KILLED = Path(__file__).parents[1] / "adapters/neutral/killed.py"


class Statistics:
    def __init__(self) -> None:
        self.mean, self.var, self.count = np.array([0.5, -1.0]), np.array([2.0, 4.0]), 7.0


class Buffer:
    __unbroken_ring__ = Ring(("obs", "actions"), position="pos", full="full")

    def __init__(self) -> None:
        self.obs, self.actions = np.arange(8.0).reshape(4, 2), np.arange(4)
        self.pos, self.full = 1, True


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a loop by hand, without torch."""
    root = tmp_path_factory.mktemp("neutral") / "runs"
    with Run(root, every=100) as run:
        run.track(obs_rms=Statistics(), buffer=Buffer())
        for _ in run.steps(2):
            pass
    return root


@pytest.fixture
def exported(run: Path, tmp_path: Path) -> Path:
    assert unbroken("export", run, "--to", "neutral", "out", cwd=tmp_path).code == 0
    return tmp_path / "out"


def test_the_command_says_what_is_carried_over_and_what_is_not(run: Path, tmp_path: Path) -> None:
    answer = unbroken("export", run, "--to", "neutral", "out", cwd=tmp_path)
    assert answer.code == 0
    lines = [line.strip() for line in answer.out.splitlines()]
    assert "carried  statistics observations: of 7 values" in lines
    assert "carried  buffer: 4 rows, oldest first" in lines
    assert "left     random generators: another program draws other numbers in another order" in lines
    assert lines[-2:] == [
        "To load: unbroken.neutral.load('out')",
        "To load: unbroken.neutral.into_sb3('out', model)",
    ]
    told = unbroken("export", run, "--to", "neutral", "again", "--json", cwd=tmp_path).json
    assert told["replay"] == ["buffer"]
    assert {
        "what": "random generators",
        "why": "another program draws other numbers in another order",
    } in told["left"]
    found = neutral.load(tmp_path / "again")
    assert found.replay["buffer"]["obs"].tolist() == [[2, 3], [4, 5], [6, 7], [0, 1]]
    assert found.replay["buffer"]["actions"].tolist() == [1, 2, 3, 0]
    assert found.normalizers["observations"].mean.tolist() == [0.5, -1.0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "out"]


def test_the_document_keeps_to_the_published_schema(exported: Path) -> None:
    from jsonschema import Draft202012Validator

    schema = json.loads(SCHEMA.read_text())
    document = json.loads((exported / "neutral.json").read_text())
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    assert [error.message for error in validator.iter_errors(document)] == []
    document["replay"][0]["columns"][0]["file"] = "../obs.npy"
    assert [error.validator for error in validator.iter_errors(document)] == ["pattern"]


def test_the_published_schema_is_that_of_the_records() -> None:
    assert json.loads(SCHEMA.read_text()) == documents.schema()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "neutral"], "--to neutral writes a directory."),
        (["--to", "neutral", "no/folder"], "The folder no does not exist."),
        (["--to", "neutral", "there"], "there exists."),
        (["--to", "neutral", "other", "--force"], "other holds something else than an export."),
        (["--to", "neutral", "file", "--force"], "file is no directory."),
        (["--to", "neutral", "out", "--component", "buffer"], "--to neutral takes from all components"),
    ],
    ids=["nothing", "no folder", "there", "something else", "a file", "component"],
)
def test_a_place_that_cannot_be_used_is_named_and_left_as_it_is(
    words: list[str], message: str, run: Path, tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("a file")
    answer = unbroken("export", run, *words, cwd=tmp_path)
    assert answer.code == 2
    assert message in answer.err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "other", "there", "thesis.tex"]


def test_an_export_takes_the_place_of_an_older_one(exported: Path, run: Path) -> None:
    (exported / "replay/old.npy").write_bytes(b"of another run")
    answer = unbroken("export", run, "--to", "neutral", exported, "--force", cwd=exported.parent)
    assert answer.code == 0
    assert sorted(path.name for path in exported.rglob("*.npy")) == ["actions.npy", "obs.npy"]
    assert [path.name for path in exported.parent.iterdir()] == ["out"]


def test_an_older_export_is_there_until_the_new_one_is_however_the_command_is_killed(tmp_path: Path) -> None:
    place = tmp_path / "out"
    died = subprocess.run(
        [sys.executable, KILLED, place], capture_output=True, text=True, check=False, timeout=280
    )
    assert died.returncode == 0, died.stderr
    found = [[int(number) for number in line.split()] for line in died.stdout.splitlines()]
    assert all(step == row for step, row in found), "of one export, and not of two"
    assert found[0] == [0, 0]
    assert found[-1] == [len(found)] * 2
    assert len({step for step, _ in found}) > 2, "some died after the new one was in its place"


def test_a_checkpoint_without_anything_for_others_is_refused(trained: Path, tmp_path: Path) -> None:
    answer = unbroken("export", trained / "runs/tiny", "--to", "neutral", "out", cwd=tmp_path)
    assert answer.code == 2
    assert "holds no network, no running statistics and no replay buffer" in answer.err
    assert list(tmp_path.iterdir()) == []


def change(key: str, value: object) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        path = directory / "neutral.json"
        document = json.loads(path.read_text())
        at: Any = document
        *way, last = key.split("/")
        for part in way:
            at = at[int(part) if part.isdigit() else part]
        at[last] = value
        path.write_text(json.dumps(document))

    return apply


def replace(name: str, data: bytes) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        (directory / name).write_bytes(data)

    return apply


def flip(name: str) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        data = bytearray((directory / name).read_bytes())
        data[-1] ^= 1
        (directory / name).write_bytes(data)

    return apply


def read(directory: Path) -> tuple[object, object]:
    export = neutral.load(directory)
    return export.replay, export.normalizers


OBS = "replay/buffer/obs.npy"
DAMAGE: dict[str, tuple[Callable[[Path], None], type[UnbrokenError], str]] = {
    "no document": (lambda at: (at / "neutral.json").unlink(), ConfigError, "holds no neutral.json"),
    "no JSON": (replace("neutral.json", b"\xff{"), CorruptObject, "is no document of an export"),
    "JSON of something else": (replace("neutral.json", b"[1]"), CorruptObject, "is no document of an export"),
    "another format": (change("format", "other"), CorruptObject, "its format is 'other'"),
    "a newer version": (
        change("version", 2),
        UnsupportedFormat,
        "has version 2; this Unbroken reads up to 1",
    ),
    "a missing key": (change("source", {}), CorruptObject, "missing required field"),
    "a path that leads out": (change("replay/0/columns/0/file", "../../etc/passwd"), CorruptObject, "regex"),
    "a file without a digest": (change("files", {}), CorruptObject, "and not its digest"),
    "environments that are not there": (
        change("replay/0/environments", 3),
        CorruptObject,
        "is not of 3 environments",
    ),
    "rows that are not there": (change("replay/0/rows", 9), CorruptObject, "has not 9 rows"),
    "another type": (change("replay/0/columns/0/dtype", "float32"), CorruptObject, "is damaged: it holds "),
    "a missing file": (lambda at: (at / OBS).unlink(), CorruptObject, "obs.npy is missing"),
    "a longer file": (lambda at: os.truncate(at / OBS, 9999), CorruptObject, "it has 9999 bytes, not"),
    "a changed row": (flip(OBS), CorruptObject, "its digest does not fit"),
    "a changed mean": (flip("normalizers.safetensors"), CorruptObject, "its digest does not fit"),
    "a mean of another shape": (
        change("normalizers/0/shape", [3]),
        CorruptObject,
        "does not hold 'observations.mean'",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_or_foreign_directory_is_one_clear_error(damage: str, exported: Path) -> None:
    spoil, kind, message = DAMAGE[damage]
    spoil(exported)
    with pytest.raises(kind) as found:
        read(exported)
    assert message in str(found.value)
    assert found.value.hint


def test_a_pickle_in_the_place_of_a_column_is_not_opened(exported: Path) -> None:
    held = np.empty(4, object)
    held[:] = [print, print, print, print]
    np.save(exported / OBS, held, allow_pickle=True)
    data = (exported / OBS).read_bytes()
    document = json.loads((exported / "neutral.json").read_text())
    document["files"][OBS] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (exported / "neutral.json").write_text(json.dumps(document))
    with pytest.raises(CorruptObject, match=r"obs\.npy is damaged"):
        read(exported)


@pytest.mark.parametrize(
    "header", [b"(" * 117 + b"\n", b"{" + b" " * 116 + b"\n"], ids=["brackets", "half a dict"]
)
def test_a_header_that_is_none_is_one_clear_error(header: bytes, exported: Path) -> None:
    data = bytearray((exported / OBS).read_bytes())
    data[10:128] = header
    (exported / OBS).write_bytes(data)
    document = json.loads((exported / "neutral.json").read_text())
    document["files"][OBS]["sha256"] = hashlib.sha256(data).hexdigest()
    (exported / "neutral.json").write_text(json.dumps(document))
    with pytest.raises(CorruptObject, match=r"obs\.npy is damaged"):
        read(exported)


def test_printed_an_export_says_what_it_holds_and_no_numbers(exported: Path) -> None:
    found = neutral.load(exported)
    assert repr(found.replay["buffer"]) == (
        "<Replay buffer: 4 rows, oldest-first; actions: int64[4], obs: float64[4, 2]>"
    )
    assert repr(found).startswith("<Export of runs at step 2, in ")
    assert repr(found).endswith("; normalizers: observations; replay: buffer>")


def test_without_verifying_a_changed_row_is_read_as_it_is(exported: Path) -> None:
    flip(OBS)(exported)
    before = neutral.load(exported, verify=False).replay["buffer"]["obs"]
    assert before.shape == (4, 2)


def test_an_export_that_moved_is_read_where_it_is(exported: Path, tmp_path: Path) -> None:
    shutil.move(exported, tmp_path / "elsewhere")
    assert len(neutral.load(tmp_path / "elsewhere").replay["buffer"]) == 4
    with pytest.raises(ConfigError, match="no column 'rewards'"):
        neutral.load(tmp_path / "elsewhere").replay["buffer"]["rewards"]
