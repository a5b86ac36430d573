"""`unbroken doctor`: what it says is what the next start does; and it does nothing itself."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.cli.command import unbroken
from tests.engine.children import die, in_child
from tests.engine.runs import flip_newest
from tests.engine.training import Training, engine_of, train
from tests.faults.test_journal import came_to, killed_and_spoilt, last_start
from tests.repo.states import meta, snapshot
from unbroken.engine.mirroring import MirrorWarning
from unbroken.errors import NoUsableCheckpoint, Untrusted
from unbroken.repo.repository import Repository
from unbroken.types import Step


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def killed(root: Path, *, until: int = 37, sick_from: int | None = None) -> None:
    """Leave a run whose process was killed."""

    def body() -> None:
        training = Training()
        engine = engine_of(training, root)
        engine.resume()
        train(engine, training, start=0, until=until if sick_from is None else sick_from)
        if sick_from is not None:
            training.net.weights[1, 1] = np.nan
            train(engine, training, start=sick_from, until=until)
        die()

    assert in_child(body) == -signal.SIGKILL


def finished(root: Path) -> None:
    training = Training()
    with engine_of(training, root) as engine:
        engine.resume()
        train(engine, training, start=0, until=25)
        engine.save(25, reason="end of training", position="end")


def failed(root: Path) -> None:
    """Leave a run that has closed five steps after its newest checkpoint."""
    training = Training()
    with engine_of(training, root) as engine:
        engine.resume()
        train(engine, training, start=0, until=26)
        engine._step = 25


def begun(root: Path) -> None:
    """Leave a run that was killed in the middle of a save."""

    def body() -> None:
        training = Training()
        engine = engine_of(training, root)
        engine.resume()
        train(engine, training, start=0, until=37)
        engine._opened().mark_pending(Step(37), "it was time", segment=0)
        die()

    assert in_child(body) == -signal.SIGKILL


def damaged(root: Path) -> None:
    killed(root)
    flip_newest(root, count=2)


def all_damaged(root: Path) -> None:
    killed(root)
    flip_newest(root, count=4)


CASES: dict[str, tuple[Callable[[Path], None], dict[str, object], list[str]]] = {
    "killed": (killed, {}, []),
    "finished": (finished, {}, []),
    "closed later than it saved": (failed, {}, []),
    "killed in a save": (begun, {}, []),
    "damaged": (damaged, {}, []),
    "weights that are no numbers": (lambda root: killed(root, sick_from=25), {}, []),
    "all damaged, may start anew": (all_damaged, {"worst_tier": "fresh"}, ["--worst-tier", "fresh"]),
    "a named step": (killed, {"resume": 10}, ["--resume", "10"]),
    "never": (killed, {"resume": "never"}, ["--resume", "never"]),
}


@pytest.mark.parametrize("case", CASES)
def test_it_says_what_the_next_start_does(root: Path, case: str) -> None:
    make, settings, options = CASES[case]
    make(root)
    answer = unbroken("doctor", root, "--json", *options, cwd=root)
    assert answer.code == 0
    told = answer.json
    first = next(attempt for attempt in told["plan"] if attempt["first"])

    engine = engine_of(Training(), root, **settings)  # type: ignore[arg-type]
    report = engine.resume()
    engine.close()
    commit = report.commit
    assert told["goes_on"]
    assert (first["tier"], first["sequence"]) == (report.tier.value, commit.sequence if commit else None)
    assert told["fault"] == {"kind": report.fault.kind.value, "detail": report.fault.detail}
    assert told["steps_lost"] == report.steps_lost
    assert f"step {report.step:,}" in told["outcome"] or not report.restored


@pytest.mark.parametrize(
    ("make", "settings", "options"),
    [
        (all_damaged, {}, []),
        (damaged, {"worst_tier": "newest"}, ["--worst-tier", "newest"]),
        (killed, {"resume": 11}, ["--resume", "11"]),
    ],
    ids=["all damaged", "no older one is wished", "a step that is not there"],
)
def test_it_says_why_the_next_start_stops(
    root: Path, make: Callable[[Path], None], settings: dict[str, object], options: list[str]
) -> None:
    make(root)
    answer = unbroken("doctor", root, *options, cwd=root)
    assert answer.code == 1
    with pytest.raises(NoUsableCheckpoint) as raised:
        engine_of(Training(), root, **settings).resume()  # type: ignore[arg-type]
    reason = raised.value.message.partition("cannot go on: ")[2].rstrip(".")
    assert f"would stop: {reason}" in answer.out
    obstacles = [line.partition(": ")[2] for line in raised.value.reasons if line.startswith("commit")]
    assert all(obstacle in answer.out for obstacle in obstacles)


def test_a_run_without_a_checkpoint_would_start_at_the_beginning(root: Path) -> None:
    finished(root)
    for record in (root / "run" / "commits").iterdir():
        record.unlink()
    answer = unbroken("doctor", root, cwd=root)
    assert (answer.code, "would start at the beginning" in answer.out) == (0, True)
    assert unbroken("doctor", root, "--resume", "must", cwd=root).code == 1


def contents(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(root.rglob("*"))
    }


READS_ONLY = """
import os, sys

def forbid(event, arguments):
    flags = arguments[2] if event == "open" and isinstance(arguments[2], int) else 0
    writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    if writes and str(arguments[0]) != os.devnull:
        raise SystemExit(f"opened for writing: {arguments[0]}")
    if event in ("os.mkdir", "os.remove", "os.rename", "os.link", "os.symlink", "os.chmod", "os.truncate", "fcntl.lockf"):
        raise SystemExit(f"{event} {arguments}")

from unbroken.cli import main
sys.addaudithook(forbid)
sys.exit(main(["doctor", *sys.argv[1:]]))
"""


def test_it_writes_and_locks_nothing(root: Path) -> None:
    damaged(root)
    before = contents(root)
    done = subprocess.run(  # noqa: PLW1510 - the status is looked at
        [sys.executable, "-B", "-c", READS_ONLY, root], capture_output=True, text=True, timeout=280
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "would go on at step 10 from an older checkpoint" in done.stdout
    assert contents(root) == before


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="unbroken-doctor-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_run_that_this_user_may_only_read_is_told_of_whole_and_would_not_start(open_to_all: Path) -> None:
    killed(open_to_all)
    for path in [open_to_all / "run", *(open_to_all / "run").rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    unbroken("doctor", open_to_all, cwd=open_to_all)  # so that nothing is left to be imported

    def body() -> None:
        os.setuid(65534)
        answer = unbroken("doctor", open_to_all, cwd=open_to_all)
        assert answer.code == 1, answer
        assert "cannot be written to by this user" in answer.out
        assert "last process: killed or crashed: process" in answer.out
        assert "step 30" in answer.out

    assert in_child(body) == 0


def test_a_process_that_works_on_the_run_is_named_and_not_disturbed(root: Path) -> None:
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            training = Training()
            engine = engine_of(training, root)
            engine.resume()
            os.write(ready[1], b"!")
            os.read(go[0], 1)
            train(engine, training, start=0, until=15)
            engine.close()
            status = 0
        finally:
            os._exit(status)
    assert select.select([ready[0]], [], [], 60)[0]
    answer = unbroken("doctor", root, cwd=root)
    os.write(go[1], b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert answer.code == 1
    assert f"would stop: the run is in use by process {child} on" in answer.out
    assert unbroken("doctor", root, cwd=root).code == 0


def test_a_key_that_is_needed_is_asked_for(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNBROKEN_KEY", "the key of the writer")
    with Repository.open(root, "run", create=True).writer() as writer:
        writer.write(snapshot(step=5, opaque=True), meta(5))
    assert "it is signed with the key in use (" in unbroken("doctor", root, cwd=root).out
    monkeypatch.setenv("UNBROKEN_KEY", "the key of somebody else")
    answer = unbroken("doctor", root, cwd=root)
    assert answer.code == 1
    named = unbroken("key", "check", root / "run", "--json", cwd=root).json["checkpoints"][0]["key"]
    assert f"signed with the key {named}, which is not held here" in answer.out
    assert "Set UNBROKEN_KEY to the key of its writer" in answer.out
    assert unbroken("doctor", root, "--trust", cwd=root).code == 0


def test_leftovers_are_listed(root: Path) -> None:
    begun(root)
    (root / "run" / "packs" / ".tmp-0123456789abcdef").write_bytes(bytes(77))
    out = unbroken("doctor", root, cwd=root).out
    assert "step 37 (it was time) was begun and is not there" in out
    assert "1 with 77 bytes" in out
    assert "bytes are free" in out


def test_what_the_mirror_has_is_told(root: Path, tmp_path: Path) -> None:
    training = Training()
    with engine_of(training, root, mirror=tmp_path / "second", mirror_keep_last=5) as engine:
        engine.resume()
        train(engine, training, start=0, until=25)
    flip_newest(root, count=3)
    assert unbroken("doctor", root, cwd=root).code == 1
    answer = unbroken("doctor", root, "--mirror", tmp_path / "second", cwd=root)
    assert answer.code == 0
    assert "would go on at step 20 from the newest checkpoint of the mirror" in answer.out
    engine = engine_of(Training(), root, mirror=tmp_path / "second", mirror_keep_last=5)
    assert engine.resume().step == 20
    engine.close()


def mirrored(root: Path, second: Path) -> None:
    training = Training()
    with engine_of(training, root, mirror=second, mirror_keep_last=5) as engine:
        engine.resume()
        train(engine, training, start=0, until=25)


def newest_damaged(root: Path) -> None:
    flip_newest(root)


def gone(root: Path) -> None:
    shutil.rmtree(root / "run")


def emptied(root: Path) -> None:
    shutil.rmtree(root / "run")
    Repository.open(root, "run", create=True)


def both_damaged(root: Path) -> None:
    flip_newest(root)
    flip_newest(root.with_name("second"))


@pytest.mark.parametrize("spoil", [newest_damaged, gone, emptied, both_damaged])
def test_from_which_step_of_the_mirror_a_start_goes_on_is_told(
    root: Path, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    mirrored(root, tmp_path / "second")
    spoil(root)
    answer = unbroken("doctor", root / "run", "--mirror", tmp_path / "second", "--json", cwd=tmp_path)
    assert answer.code == 0, answer
    told = answer.json
    first = next(attempt for attempt in told["plan"] if attempt["first"])
    engine = engine_of(Training(), root, mirror=tmp_path / "second", mirror_keep_last=5)
    report = engine.resume()
    engine._dispatch.mirroring.wait()  # type: ignore[union-attr]
    assert report.commit is not None
    assert (told["step"], first["step"], first["sequence"]) == (
        report.step,
        report.step,
        report.commit.sequence,
    )
    assert first["from_mirror"] == ("from the mirror" in report.line)
    assert (first["tier"], told["fault"]["kind"]) == (report.tier.value, report.fault.kind.value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MirrorWarning)  # the damaged one cannot be copied
        engine.close()


def test_a_key_that_the_mirror_needs_is_asked_for_where_a_start_would_stop(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNBROKEN_KEY", "the key of somebody else")
    with Repository.open(tmp_path / "second", "run", create=True).writer() as writer:
        writer.write(snapshot(step=5), meta(5))
        writer.write(snapshot(step=10, opaque=True), meta(10))
    monkeypatch.setenv("UNBROKEN_KEY", "the key of the one who starts")
    answer = unbroken("doctor", root / "run", "--mirror", tmp_path / "second", cwd=tmp_path)
    assert (answer.code, "would stop: it holds pickled parts" in answer.out) == (1, True)
    with pytest.raises(Untrusted, match="step 10"):
        engine_of(Training(), root, mirror=tmp_path / "second").resume()
    trusting = unbroken("doctor", root / "run", "--mirror", tmp_path / "second", "--trust", cwd=tmp_path)
    assert (trusting.code, "would go on at step 10" in trusting.out) == (0, True)


def test_a_run_that_is_nowhere_is_no_run(root: Path, tmp_path: Path) -> None:
    answer = unbroken("doctor", root / "run", "--mirror", tmp_path / "second", cwd=tmp_path)
    assert (answer.code, "does not exist" in answer.err) == (2, True)


def test_what_the_configuration_file_says_counts(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrored(root, tmp_path / "second")
    flip_newest(root, count=3)
    (tmp_path / "unbroken.yaml").write_text(
        f"checkpoint:\n  root: {root}\n  mirror: {tmp_path / 'second'}\n  worst_tier: newest\n"
    )
    answer = unbroken("doctor", root, cwd=tmp_path)
    assert (answer.code, "settings from unbroken.yaml" in answer.out) == (0, True)
    assert "would go on at step 20 from the newest checkpoint of the mirror" in answer.out
    monkeypatch.setenv("UNBROKEN_MIRROR", str(tmp_path / "third"))
    assert unbroken("doctor", root, cwd=tmp_path).code == 1
    assert unbroken("doctor", root, "--worst-tier", "fresh", cwd=tmp_path).code == 0


@pytest.mark.parametrize("how", ["the file", "a variable"])
def test_without_a_run_it_is_the_one_that_the_settings_name(
    root: Path, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(root)
    if how == "the file":
        (tmp_path / "unbroken.yaml").write_text(f"checkpoint:\n  root: {root}\n")
    else:
        monkeypatch.setenv("UNBROKEN_ROOT", str(root))
    answer = unbroken("doctor", cwd=tmp_path)
    assert (answer.code, str(root / "run") in answer.out) == (0, True)
    with Repository.open(root, "another", create=True).writer() as writer:
        writer.write(snapshot(step=5), meta(5))
    several = unbroken("doctor", cwd=tmp_path)
    assert (several.code, "2 runs: another, run" in several.err) == (2, True)
    monkeypatch.setenv("UNBROKEN_JOB", "another")
    assert str(root / "another") in unbroken("doctor", cwd=tmp_path).out


def test_a_begun_save_of_another_training_of_the_script_is_not_taken_for_one_that_is_there(
    root: Path,
) -> None:
    finished(root)
    with Repository.open(root, "run").writer() as writer:
        writer.mark_pending(Step(25), "it was time", segment=1)
    assert "step 25 (it was time) was begun and is not there" in unbroken("doctor", root, cwd=root).out


def test_checkpoints_that_were_left_behind_on_purpose_are_called_abandoned(root: Path) -> None:
    killed(root)
    training = Training()
    engine = engine_of(training, root, resume=10)
    engine.resume()
    train(engine, training, start=10, until=15)
    engine.close()
    told = unbroken("doctor", root, "--json", cwd=root).json
    assert {a["step"]: a["abandoned"] for a in told["plan"] if a["step"] in (20, 30)} == {20: True, 30: True}
    rows = [row.split() for row in unbroken("doctor", root, cwd=root).out.splitlines() if "step" in row]
    assert [row[:3] for row in rows if "abandoned" in row][:1] == [["abandoned", "step", "30,"]]


def test_environments_that_can_be_rebuilt_from_the_journal_are_told(root: Path, tmp_path: Path) -> None:
    killed_and_spoilt("frozenlake", root)
    without = Path(shutil.copytree(root, tmp_path / "without"))
    shutil.rmtree(without / "run" / "journal")
    stops = unbroken("doctor", without, cwd=without)
    assert (stops.code, "journal=True records them" in stops.out) == (1, True)
    answer = unbroken("doctor", root, "--json", cwd=root)
    assert answer.code == 0
    rebuilt = next(attempt for attempt in answer.json["plan"] if attempt["first"])
    assert rebuilt["tier"] == "rebuilt"
    assert unbroken("doctor", root, "--worst-tier", "older", cwd=root).code == 1
    came_to("frozenlake", root)
    tier, step = last_start(root)
    assert tier == "rebuilt"
    assert f"would go on at step {step:,}, with environments rebuilt" in answer.json["outcome"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--resume", "sometimes"], "--resume is one of"),
        (["--worst-tier", "worst"], "worst_tier is one of"),
        (["--best", "score:most"], "is no metric"),
        (["--resume", "best"], "needs a metric"),
    ],
    ids=["resume", "worst tier", "best", "best of what"],
)
def test_options_that_mean_nothing_are_refused(root: Path, options: list[str], words: str) -> None:
    finished(root)
    answer = unbroken("doctor", root, *options, cwd=root)
    assert answer.code == 2
    assert words in answer.err


def test_a_copy_has_no_process_that_was_killed(root: Path, tmp_path: Path) -> None:
    finished(root)
    unbroken("copy", f"{root}/run", tmp_path / "copied", "--all", cwd=root)
    answer = unbroken("doctor", tmp_path / "copied", cwd=root)
    assert "last process: no process is on record" in answer.out
    with engine_of(Training(), tmp_path / "copied") as engine:
        report = engine.resume()
    assert "killed" not in report.text
    assert (report.tier.value, report.fault.kind.value) == ("newest", "none")


def test_older_checkpoints_that_are_not_needed_read_like_no_fault(root: Path) -> None:
    killed(root)
    out = unbroken("doctor", root, cwd=root).out
    rows = [line.split() for line in out.splitlines()]
    first = next(row for row in rows if row and row[0] == "->")
    assert (first[1], first[-1]) == ("newest", "nothing")
    assert [row[0] for row in rows if row[-4:] == ["it", "is", "not", "needed"]][:3] == ["older"] * 3
    flip_newest(root, count=2)
    ended = next(
        line for line in unbroken("doctor", root, cwd=root).out.splitlines() if "last process" in line
    )
    assert ".;" not in ended
    assert ended.startswith("last process: checkpoint damaged: ")
    assert "is gone without closing the run (soft); damaged: " in ended
