"""What the keys of the configuration file do to real runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import unbroken
from unbroken.errors import ConfigError, RestoreFailed
from unbroken.format.compression import BlobCodec
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.repository import Repository

SCRIPT = Path(__file__).with_name("configured_script.py")
FILE = "checkpoint:\n  storage_path: filed\n  job: mine\n  save_every_n_steps: 10\n"
Train = Callable[..., Repository]


def start(folder: Path, *words: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UNBROKEN_")}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words], cwd=folder, env=environment, check=False, capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == expect, done.stderr
    return done


def test_a_run_that_only_the_file_configures_ends_as_if_never_killed(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("undisturbed", "resumed", "cold")}
    for folder in folders.values():
        folder.mkdir()
        (folder / "unbroken.yaml").write_text(FILE)
    undisturbed = start(folders["undisturbed"], "-1")
    assert " · settings from unbroken.yaml · " in undisturbed.stderr
    start(folders["resumed"], "37", expect=-9)
    shutil.copytree(folders["resumed"] / "filed", folders["cold"] / "filed")
    resumed, cold = start(folders["resumed"], "-1"), start(folders["cold"], "-1", "cold")
    assert "goes on at step 30 " in resumed.stderr
    assert " · settings from unbroken.yaml · " in resumed.stderr
    assert resumed.stdout == undisturbed.stdout
    assert cold.stdout != undisturbed.stdout
    assert (folders["resumed"] / "filed" / "mine" / "steps").is_dir()


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Train under a file with these lines, in this process, and return what was saved."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("UNBROKEN_")]:
        monkeypatch.delenv(name)

    def trained(*lines: str, total: int = 30, tracked: object = None) -> Repository:
        Path("unbroken.yaml").write_text("\n  ".join((FILE + lines[0], *lines[1:])) + "\n")
        buffer = unbroken.PrioritizedReplayBuffer(64, {"obs": ((2048,), "f8")})
        run = unbroken.Run(quiet=True)
        run.track(buffer=buffer, extra=np.arange(5000.0) if tracked is None else tracked)
        for step in run.steps(total):
            run.wait()  # so that each interval has its checkpoint
            if isinstance(tracked, Forgetful):
                tracked.value += 1
            buffer.add(obs=np.full(2048, step))
        return Repository.open("filed", "mine")

    return trained


def codecs(repository: Repository) -> set[BlobCodec]:
    index = BlobIndex(repository.store)
    index.refresh()
    return {entry.codec for found in index.packs.values() for entry in found.entries}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("none", {BlobCodec.RAW}),
        ("gzip", {BlobCodec.RAW, BlobCodec.GZIP}),
        ("zstd", {BlobCodec.RAW, BlobCodec.ZSTD}),
    ],
)
def test_the_codec_is_the_one_that_is_named(train: Train, word: str, expected: set[BlobCodec]) -> None:
    repository = train("  serialization:", f"  compression: {word}")
    found = codecs(repository)
    assert found <= expected
    assert (BlobCodec.RAW in found) if word == "none" else (BlobCodec(word) in found)


def test_the_codec_is_also_that_of_a_process_that_writes(train: Train) -> None:
    assert BlobCodec.GZIP in codecs(train("  writer: process", "compression: gzip"))


def test_a_higher_level_makes_smaller_packs(train: Train) -> None:
    def size(level: int) -> int:
        numbers = np.random.default_rng(1).integers(0, 9, 60_000)
        repository = train(
            "  serialization:", "  compression: zstd", f"  compression_level: {level}", tracked=numbers
        )
        found = sum(path.stat().st_size for path in Path("filed/mine").glob("packs/**/*") if path.is_file())
        assert codecs(repository) >= {BlobCodec.ZSTD}
        shutil.rmtree("filed")
        return found

    assert size(19) < size(1)


def test_only_new_rows_are_captured_unless_that_is_switched_off(train: Train) -> None:
    def captured(*lines: str) -> int:
        repository = train(*lines, total=50)
        (commit,) = (commit for commit in repository.commits() if commit.step == 40)
        found = sum(cost.captured for cost in repository.meta(commit).cost.values())
        shutil.rmtree("filed")
        return found

    rows = 40 * 2048 * 8
    assert captured("  distributed:", "  incremental_save: true") < rows
    assert captured("  distributed:", "  incremental_save: false") >= rows


def test_so_many_checkpoints_stay_as_the_file_says(train: Train) -> None:
    assert [commit.step for commit in train("  max_checkpoints: 2", total=50).commits()] == [50, 40]


def test_documents_are_of_the_format_that_the_file_names(train: Train) -> None:
    train("  serialization:", "  format: messagepack")
    names = {path.name for path in Path("filed/mine/steps").glob("*/*")}
    assert any(name.endswith(".msgpack") for name in names)
    assert not any(name.startswith("extra") and name.endswith(".json") for name in names)


@pytest.mark.parametrize("key", ["auto_resume", "resume_if_exists"])
def test_a_run_that_is_not_to_be_resumed_begins_anew(train: Train, key: str) -> None:
    newest = train("  recovery:", f"  {key}: true").commits()[0].sequence
    assert train("  recovery:", f"  {key}: true").commits()[0].sequence == newest
    assert train("  recovery:", f"  {key}: false").commits()[0].sequence > newest


class Forgetful:
    """Has a state, and takes none back."""

    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


def test_what_does_not_come_back_is_found_unless_nobody_looks(train: Train) -> None:
    train("  resume: auto", tracked=Forgetful())
    with pytest.raises(RestoreFailed, match="not what was saved"):
        train("  recovery:", "  validate_state: true", total=40, tracked=Forgetful())
    train("  recovery:", "  validate_state: false", total=40, tracked=Forgetful())
    report = Repository.open("filed", "mine").history()
    assert any("not compared with what was saved" in line for record in report for line in record.changes)


def test_a_file_that_cannot_be_used_stops_a_training_before_anything_is_written(train: Train) -> None:
    with pytest.raises(ConfigError, match=r"unbroken\.yaml:5: checkpoint has no key 'max_checkpoint'"):
        train("  max_checkpoint: 2")
    assert not Path("filed").exists()
