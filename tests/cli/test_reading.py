"""ls, show, verify and diff, on a run that a real script has written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.command import unbroken
from unbroken.adapters.loop import Run
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.cli.ls import cells
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.settings import Resume, Settings
from unbroken.inspection import target
from unbroken.inspection.listing import Listed
from unbroken.repo.repository import Repository

STEPS = [40, 30, 20]


def test_ls_lists_every_checkpoint(trained: Path) -> None:
    answer = unbroken("ls", "runs", cwd=trained)
    assert answer.code == 0
    head, *lines = answer.out.splitlines()
    assert head.split() == ["run", "step", "taken", "saved", "state", "metrics"]
    assert [(line.split()[0], int(line.split()[1])) for line in lines] == [
        ("runs/tiny/tiny", step) for step in STEPS
    ]
    assert "reward 1.5" in lines[0]
    assert "at the end" in lines[0]
    assert all("good" in line for line in lines)


def test_ls_for_machines(trained: Path) -> None:
    (run,) = unbroken("ls", "runs/tiny", "--json", cwd=trained).json["runs"]
    assert [listed["commit"]["step"] for listed in run["checkpoints"]] == STEPS


def test_ls_without_a_name_takes_the_environment(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNBROKEN_ROOT", "runs/tiny")
    assert unbroken("ls", "--json", cwd=trained).json["root"] == "runs/tiny"


def test_show_names_what_a_person_asks_for(trained: Path) -> None:
    answer = unbroken("show", "runs", "--cost", cwd=trained)
    assert answer.code == 0
    for words in (
        "step_000000000040",
        "end of training",
        "rng_states",
        "training_state",
        "exact",
        "stood still",
    ):
        assert words in answer.out
    seen = unbroken("show", "runs", "--json", cwd=trained).json
    assert seen["meta"]["step"] == 40
    sizes = {row["component"]: row["array_bytes"] for row in seen["components"]}
    assert sizes["training_state"] == 3000 * 8


def test_show_one_component(trained: Path) -> None:
    answer = unbroken("show", "runs@30", "--component", "training_state", cwd=trained)
    assert answer.code == 0
    assert any(line.split() == ["weights", "array", "<f8", "[3000]"] for line in answer.out.splitlines())


@pytest.mark.parametrize("words", [("runs@20",), ("runs", "--step", "20"), ("runs/tiny/tiny@20",)])
def test_a_step_can_be_named_in_several_ways(trained: Path, words: tuple[str, ...]) -> None:
    assert unbroken("show", *words, "--json", cwd=trained).json["commit"]["step"] == 20


def test_a_step_directory_names_its_checkpoint(trained: Path) -> None:
    (directory,) = (trained / "runs/tiny/tiny/steps").glob("step_000000000030-*")
    assert unbroken("show", directory, "--json", cwd=trained).json["commit"]["step"] == 30


def test_verify_an_intact_run(trained: Path) -> None:
    answer = unbroken("verify", "runs", cwd=trained)
    assert answer.code == 0
    assert answer.out.count("intact") == 3


@pytest.fixture
def damaged(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run, with one flipped bit in a document of its newest checkpoint."""
    shutil.copytree(trained / "runs", tmp_path / "runs")
    (document,) = (tmp_path / "runs/tiny/tiny/steps").glob("step_000000000040-*/training_state.json")
    data = bytearray(document.read_bytes())
    data[len(data) // 2] ^= 1
    document.write_bytes(data)
    return tmp_path


def test_verify_names_the_damaged_object(damaged: Path) -> None:
    answer = unbroken("verify", "runs", cwd=damaged)
    assert answer.code == 1
    assert "training_state.json" in answer.out
    assert answer.out.count("intact") == 2
    seen = unbroken("verify", "runs", "--json", cwd=damaged).json
    assert not seen["intact"]
    assert [len(row["faults"]) for row in seen["checkpoints"]] == [1, 0, 0]
    assert unbroken("verify", "runs@30", cwd=damaged).code == 0


def test_verify_finds_a_flipped_bit_in_a_pack(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "runs", tmp_path / "runs")
    for pack in (tmp_path / "runs/tiny/tiny/packs").rglob("*.pack"):
        data = bytearray(pack.read_bytes())
        data[len(data) // 2] ^= 1
        pack.write_bytes(data)
    assert unbroken("verify", "runs", cwd=tmp_path).code == 1


@pytest.mark.parametrize(
    "words",
    [
        ("show", "runs"),
        ("show", "runs", "--component", "training_state"),
        ("export", "runs", "--component", "training_state", "--to", "x.json"),
        ("diff", "runs", "runs@30"),
    ],
)
def test_a_damaged_checkpoint_cannot_be_read_and_the_error_names_another(
    damaged: Path, words: tuple[str, ...]
) -> None:
    answer = unbroken(*words, cwd=damaged)
    assert answer.code == 2
    assert "training_state.json" in answer.err
    assert "runs/tiny/tiny@30" in answer.err
    assert "unbroken verify" in answer.err
    assert "Traceback" not in answer.err
    assert unbroken(words[0], "runs/tiny/tiny@30", *words[2:], cwd=damaged).code < 2


def test_ls_says_which_checkpoint_is_damaged(damaged: Path) -> None:
    first, *others = unbroken("ls", "runs", cwd=damaged).out.splitlines()[1:]
    assert "damaged: " in first
    assert all("good" in line for line in others)


def test_what_is_no_file_is_told_beside_the_checkpoints_that_are_whole(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "runs", tmp_path / "runs")
    run = tmp_path / "runs/tiny/tiny"
    newest = max((run / "commits").iterdir())
    newest.unlink()
    newest.mkdir()
    (document,) = (run / "steps").glob("step_000000000030-*/training_state.json")
    document.unlink()
    os.mkfifo(document)
    listed = unbroken("ls", "runs", cwd=tmp_path)
    assert listed.code == 0
    assert sum("good" in line for line in listed.out.splitlines()) == 1
    assert sum("damaged: " in line for line in listed.out.splitlines()) == 2
    assert str(newest.name) in listed.out
    answer = unbroken("verify", "runs", cwd=tmp_path)
    assert answer.code == 1
    assert answer.out.count("intact") == 1
    assert "it is a named pipe" in answer.out
    seen = unbroken("verify", "runs", "--json", cwd=tmp_path).json
    assert [fault["key"] for fault in seen["broken"]] == [f"commits/{newest.name}"]


def test_a_run_that_cannot_be_read_does_not_hide_the_others(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "runs", tmp_path / "runs")
    (tmp_path / "runs/other").mkdir()
    (tmp_path / "runs/other/format.json").write_text("{}")
    answer = unbroken("ls", "runs", cwd=tmp_path)
    assert answer.code == 0
    assert "format.json" in answer.out.splitlines()[1]
    assert answer.out.count("good") == 3


def test_what_training_went_back_before_is_marked(tmp_path: Path) -> None:
    source = GraftSource({"weights": np.zeros(3)}, policy_of_loaded())

    def train(*steps: int, resume: Resume = "auto") -> None:
        settings = Settings(root=tmp_path / "run", keep_last=9, resume=resume)
        with CheckpointEngine(source, settings, environment={}) as engine:
            engine.resume()
            for step in steps:
                engine.save(step, reason="it was time", wait=True)

    train(10, 20, 30)
    train(20, 25, resume=10)
    (run,) = unbroken("ls", "run", "--json", cwd=tmp_path).json["runs"]
    assert [(c["commit"]["step"], c["abandoned"]) for c in run["checkpoints"]] == [
        (25, False),
        (20, False),
        (30, True),
        (20, False),
        (10, False),
        (0, False),
    ]
    out = unbroken("ls", "run", cwd=tmp_path).out
    assert out.count("abandoned: a later start went back before it") == 1
    assert out.count("saved again at this step by a later start") == 1


def test_an_end_that_a_later_start_went_on_from_is_not_abandoned(tmp_path: Path) -> None:
    for total in (10, 20):
        run = Run(tmp_path / "run", every=100, quiet=True)
        run.track(weights=np.zeros(3))
        for _ in run.steps(total):
            pass
    (listed,) = unbroken("ls", "run", "--json", cwd=tmp_path).json["runs"]
    told = [(c["commit"]["step"], c["abandoned"]) for c in listed["checkpoints"]]
    assert told == [(20, False), (10, False), (0, False)]
    assert "abandoned" not in unbroken("ls", "run", cwd=tmp_path).out


def test_what_all_parts_have_lost_is_one_word_in_a_list(trained: Path) -> None:
    newest = Repository.open(trained / "runs/tiny", "tiny").commits()[0]
    inexact = dict.fromkeys(["callbacks", "env_states", "logger"], "approximate")

    def told(components: int) -> str:
        return str(cells(Listed(newest, "", False, False, inexact, components)))

    assert "good; approximate: all parts" in told(3)
    assert "good; approximate: callbacks, env_states, logger" in told(4)


def test_the_search_for_runs_is_bounded_and_passes_over_what_may_not_be_read(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [path.name for path in target.runs_below(trained)] == ["tiny"]
    assert target.runs_below(trained / "runs", depth=1) == []
    assert target.runs_below(Path("/proc/self")) == []  # full of what another user may not read
    scandir = os.scandir

    def denied(path: Path) -> Any:
        if path.name == "empty":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    assert [path.name for path in target.runs_below(trained)] == ["tiny"]
    monkeypatch.setattr(target, "MOST", 2)
    answer = unbroken("ls", ".", cwd=trained)
    assert answer.code == 2
    assert "more than 2 directories" in answer.err


def test_notes_of_a_kind_are_told_once(tmp_path: Path) -> None:
    source = GraftSource({"a": {1, 2}, "b": {3, 4}, "c": [{5, 6}]}, policy_of_loaded())
    with CheckpointEngine(source, Settings(root=tmp_path / "run"), environment={}) as engine:
        engine.resume()
    short = unbroken("show", "run", cwd=tmp_path).out
    assert short.count("note ") == 1
    assert "and 2 more like it (--all)" in short
    assert unbroken("show", "run", "--all", cwd=tmp_path).out.count("note ") == 3


def test_diff_of_equal_and_different_checkpoints(trained: Path) -> None:
    equal = unbroken("diff", "runs@40", "runs", cwd=trained)
    assert equal.code == 0
    a, b, _, head, *rows = equal.out.splitlines()
    assert a.startswith("A: step 40, at the end, runs/tiny/tiny/steps/")
    assert b.startswith("B: step 40")
    assert head.split() == ["component", "result", "leaves"]
    assert [row.split()[1] for row in rows] == ["equal", "equal"]
    assert all(int(row.split()[2]) > 0 for row in rows)
    different = unbroken("diff", "runs@40", "runs@30", "--all", cwd=trained)
    assert different.code == 1
    assert "B: step 30, in training" in different.out
    assert "weights" in different.out
    rows = unbroken("diff", "runs@40", "runs@30", "--json", cwd=trained).json["components"]
    found = {
        row["component"]: [(leaf["place"], leaf["distance"]) for leaf in row["differences"]] for row in rows
    }
    assert found == {"rng_states": [], "training_state": [("weights", 0.5)]}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("ls", "nowhere"), "does not exist"),
        (("ls", "empty"), "holds no runs"),
        (("show", "train.py"), "is a file"),
        (("show", "empty"), "holds no run"),
        (("show", "runs@35"), "It holds: 40, 30, 20"),
        (("show", "runs@35x"), "is not a step"),
        (("show", "runs@30", "--step", "30"), "one of them"),
        (("show", "runs", "--component", "wings"), "training_state"),
        (("verify", "runs/tiny/tiny/steps/step_000000000030-0"), "not a committed checkpoint"),
        (("diff", "runs", "nowhere"), "does not exist"),
        (("prove", "--kills", "0", "--", "true"), "at least one kill"),
        (("prove", "--kill", "all", "--", "true"), "neither tree nor trainer"),
        (("prove", "--keep", "runs", "--", "true"), "not empty"),
        (("prove", "--timeout", "0", "--", "true"), "longer than nothing"),
    ],
)
def test_mistakes_are_one_sentence_and_a_next_step(trained: Path, words: tuple[str, ...], says: str) -> None:
    answer = unbroken(*words, cwd=trained)
    assert answer.code == 2
    assert answer.out == ""
    assert says in answer.err
    assert answer.err.startswith("unbroken: ")
    assert "Traceback" not in answer.err


def test_several_runs_must_be_told_apart(trained: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(trained / "runs/tiny/tiny", tmp_path / name)
    answer = unbroken("show", ".", cwd=tmp_path)
    assert answer.code == 2
    assert "one, two" in answer.err
    assert len(unbroken("ls", "--json", cwd=tmp_path).json["runs"]) == 2


def test_errors_for_machines_and_with_debug(trained: Path) -> None:
    answer = unbroken("show", "nowhere", "--json", "--debug", cwd=trained)
    assert answer.json["error"]["kind"] == "ConfigError"
    assert "Traceback" in answer.err


def test_wrong_usage(trained: Path) -> None:
    assert unbroken("show", cwd=trained).code == 2
    assert unbroken("fly", cwd=trained).code == 2
    assert unbroken("ls", "--wings", cwd=trained).code == 2
    assert unbroken("--version", cwd=trained).out.startswith("unbroken ")


def test_the_demo_is_run_where_the_source_is(trained: Path, tmp_path: Path) -> None:
    assert "make demo" in unbroken("demo", cwd=trained).err
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo/part.py").write_text("word = 'bit-exact'\n")
    main = "import sys\nfrom demo import part\nprint(part.word, *sys.argv[1:])\nsys.exit(1)\n"
    (tmp_path / "demo/__main__.py").write_text(main)
    (tmp_path / "demo/__init__.py").touch()
    # A process of its own: this one may know another module of that name.
    done = subprocess.run(
        [sys.executable, "-m", "unbroken", "demo", "--", "--fast"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "bit-exact --fast\n")
