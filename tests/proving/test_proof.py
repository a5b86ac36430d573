"""Whole proofs with real scripts: what is equal, what is different, and what proves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proving.scripts import write_script
from unbroken.errors import ConfigError, Unproved
from unbroken.proving.launch import KillTarget
from unbroken.proving.proof import prove
from unbroken.report.proof import FinalComparison, Kill, ProveResult, Resume, Start, restored_steps


class Witness:
    """Writes down what a proof tells while it goes on."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.furthest = 0

    def begins(self, what: str, steps: int) -> None:
        self.told.append(what)

    def reached(self, step: int) -> None:
        self.furthest = max(self.furthest, step)

    def killed(self, kill: Kill) -> None:
        self.told.append("kill")


DAEMON = """
sleeper = "import os, sys, time; os.setsid(); child = os.fork(); " \\
    "child and (print(child, file=open(sys.argv[1], 'a'), flush=True), os._exit(0)); time.sleep(600)"
subprocess.run([sys.executable, "-c", sleeper, "pids"], check=True)
"""
"""A process that leaves its parent and its session, as a daemon does; `pids` lists every one, as soon as it is there."""


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("target", ["tree", "trainer"])
def test_a_script_without_a_seed_ends_as_if_never_killed_and_leaves_no_daemon(
    tmp_path: Path, target: KillTarget
) -> None:
    witness = Witness()
    command = write_script(tmp_path, before=DAEMON)
    result = prove(command, kills=2, target=target, cwd=tmp_path, observer=witness)
    assert result.equal
    assert [row.component for row in result.finals[0].components] == ["rng_states", "training_state"]
    assert len(result.kills) == 2
    assert all(kill.step > kill.committed for kill in result.kills)
    assert restored_steps(result.starts)
    assert result.starts[0].resumes[0].step == 0
    assert not result.starts[0].resumes[0].restored
    assert result.steps == 1500
    assert witness.told == ["undisturbed run", "killed run", "kill", "kill", "comparison of the two ends"]
    assert witness.furthest > 0
    assert not list(tmp_path.glob("runs"))
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 4
    assert not any(alive(pid) for pid in pids)


@pytest.mark.parametrize("target", ["tree", "trainer"])
def test_a_process_that_writes_outlives_the_trainer_and_not_the_tree(
    tmp_path: Path, target: KillTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNBROKEN_WRITER", "process")
    result = prove(write_script(tmp_path, every=20), kills=4, target=target, cwd=tmp_path)
    assert result.verdict == "equal"
    assert any(kill.handed for kill in result.kills)
    # Only of the trainer alone something is promised.
    assert (result.handed_over > 0) == (target == "trainer")
    assert result.outlived == result.handed_over


def start(step: int, handed: int | None) -> Start:
    resume = Resume(job="run", tier="newest", fault="", step=step, restored=step > 0, seconds=0.0)
    kill = None if handed is None else Kill(step=90, committed=0, seconds=1.0, handed=handed)
    return Start(resumes=(resume,), kill=kill)


@pytest.mark.parametrize(
    ("target", "came_back", "verdict"),
    [
        ("trainer", 40, "equal"),
        ("trainer", 50, "equal"),
        ("trainer", 30, "snapshot lost"),
        ("tree", 30, "equal"),
    ],
)
def test_a_snapshot_that_was_handed_over_and_is_not_there_is_no_pass(
    target: str, came_back: int, verdict: str
) -> None:
    result = ProveResult(
        command=("true",),
        target=target,
        seed=7,
        steps=90,
        undisturbed_seconds=1.0,
        killed_seconds=1.0,
        starts=(start(0, handed=40), start(came_back, handed=None)),
        finals=(FinalComparison(job="run", segment=0, step=90),),
        left_out=(),
        directory=None,
    )
    assert result.verdict == verdict


def test_a_script_that_is_not_deterministic_is_different(tmp_path: Path) -> None:
    result = prove(write_script(tmp_path, inside="weights[7] += os.getpid()"), kills=1, cwd=tmp_path)
    assert not result.equal
    found = {row.component: row for row in result.finals[0].components}
    assert found["rng_states"].equal
    first = found["training_state"].first
    assert first is not None
    assert first.place == "weights"
    assert first.distance is not None
    assert first.distance > 0


def test_a_forgotten_variable_is_found(tmp_path: Path) -> None:
    """What a script keeps beside its checkpoint starts anew in every process."""
    script = write_script(tmp_path, before="seen = [0]", inside="seen[0] += 1; weights[3] += seen[0]")
    assert not prove(script, kills=1, cwd=tmp_path).equal


def test_both_runs_and_the_output_can_be_kept(tmp_path: Path) -> None:
    keep = tmp_path / "proof"
    result = prove(write_script(tmp_path), kills=1, keep=keep, cwd=tmp_path)
    assert result.directory == keep
    assert (keep / "undisturbed/tiny/format.json").is_file()
    assert (keep / "killed/tiny/format.json").is_file()
    assert (keep / "output/undisturbed.out").read_text() == "done\n"
    assert (keep / "output/start-1.out").read_text() == ""
    assert (keep / "output/start-2.out").read_text() == "done\n"


def fails(tmp_path: Path, command: list[str], *, says: str, kills: int = 1) -> Unproved:
    with pytest.raises(Unproved, match=says) as caught:
        prove(command, kills=kills, keep=tmp_path / "proof", cwd=tmp_path)
    return caught.value


def test_a_script_that_fails(tmp_path: Path) -> None:
    error = fails(tmp_path, write_script(tmp_path, before="sys.exit('no data')"), says="exit status 1")
    assert error.log[-1] == "no data"
    assert str(tmp_path / "proof/output") in error.hint


def test_a_script_that_fails_when_it_is_started_again(tmp_path: Path) -> None:
    before = "assert not (root / 'tiny/history.jsonl').exists(), 'only once'"
    error = fails(tmp_path, write_script(tmp_path, before=before), says=r"start 2 of the killed run")
    assert "only once" in error.log[-1]


def test_a_script_that_writes_no_checkpoint(tmp_path: Path) -> None:
    fails(tmp_path, write_script(tmp_path, before="sys.exit(0)"), says="wrote no checkpoint")


def test_a_script_that_saves_too_rarely(tmp_path: Path) -> None:
    fails(tmp_path, write_script(tmp_path, every=10**9), says="nothing between its start and its end")


def test_a_script_that_ends_before_it_is_killed(tmp_path: Path) -> None:
    """The step 0 that was copied tells the script that this is not the first run."""
    steps = "20 if (root / 'tiny').exists() else 1500"
    fails(tmp_path, write_script(tmp_path, steps=steps), says="after 0 of 2 kills", kills=2)


def test_a_script_that_never_resumes(tmp_path: Path) -> None:
    before = "import shutil; shutil.rmtree(root / 'tiny', ignore_errors=True)"
    fails(tmp_path, write_script(tmp_path, before=before), says="No restart restored")


def test_a_script_that_takes_too_long(tmp_path: Path) -> None:
    command = write_script(tmp_path, before="import time; time.sleep(600)")
    with pytest.raises(Unproved, match="within 1 seconds"):
        prove(command, timeout=1, keep=tmp_path / "proof", cwd=tmp_path)


def test_no_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no command"):
        prove([], cwd=tmp_path)


def test_a_result_without_ends_is_not_equal() -> None:
    result = ProveResult(
        command=("true",),
        target="tree",
        seed=7,
        steps=1,
        undisturbed_seconds=1.0,
        killed_seconds=1.0,
        starts=(),
        finals=(),
        left_out=(),
        directory=None,
    )
    assert not result.equal
