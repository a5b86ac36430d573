"""`writer="process"`: real processes, real SIGKILL. What `save()` returned for is committed, and nothing
is left behind."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.children import (
    Countdown,
    companion_of,
    die,
    ended,
    holders_of_memory,
    in_child,
    pid_of,
)
from tests.engine.runs import abandon, break_store, repository, steps_of
from tests.engine.training import Training, engine_of, source_of, train, undisturbed
from tests.store.test_real_conditions import mounted
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.schedule import Every
from unbroken.engine.settings import Settings
from unbroken.engine.warnings import CompanionLeftWarning, StagingFullWarning
from unbroken.errors import CorruptObject, SaveFailed, StoreError, StoreFull, StoreUnavailable, UnbrokenError
from unbroken.format import layout
from unbroken.format.chunks import ChunkList
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.chunklists import ChunkLists
from unbroken.repo.process import Process
from unbroken.repo.run_writer import RunWriter
from unbroken.state.diff import compare
from unbroken.state.snapshot import Base, Rows, Snapshot
from unbroken.state.staging import own

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")

WIDTH = 64
"""32 KiB of weights: a blob, which lies in the staging."""


def companioned(root: Path, **settings: Any) -> tuple[Training, CheckpointEngine]:
    training = Training(width=WIDTH)
    return training, engine_of(training, root, writer="process", **settings)


def goes_on_exactly(root: Path) -> int:
    """Start again and train to step 40; return where the start went on. The end must be the undisturbed one."""
    training, engine = companioned(root)
    step = engine.resume().step
    train(engine, training, start=step, until=40)
    engine.save(40, reason="end of training", position="end")
    engine.close()
    assert training.digest() == undisturbed(40, width=WIDTH)
    kept = repository(root)
    assert [fault for commit in kept.commits() for fault in kept.verify(commit)] == []
    assert kept.stale() == []
    return step


# What is written


ROW = 6000


class Ring:
    """A buffer that counts its adds, so that a save takes the new rows only."""

    def __init__(self) -> None:
        self.rows = np.zeros((1000, ROW), np.uint8)
        self.adds = 0

    def add(self, value: int) -> None:
        self.rows[self.adds % 1000] = value
        self.adds += 1


def declare(cls: type) -> None:
    import unbroken

    cls.__unbroken_ring__ = unbroken.Ring(("rows",), position="position", adds="adds")  # type: ignore[attr-defined]
    cls.position = property(lambda ring: ring.adds % 1000)  # type: ignore[attr-defined]


declare(Ring)


def ring_of(root: Path, writer: str) -> tuple[Ring, CheckpointEngine]:
    ring, tags = Ring(), {"text \udcff": [float("nan"), 2**70]}
    source = GraftSource({"ring": ring, "tags": tags, "blob": bytearray(b"x" * 5000)}, policy_of_loaded())
    settings = Settings(root=root, job="run", writer=writer, keep_last=9)  # type: ignore[arg-type]
    engine = CheckpointEngine(source, settings, environment={})
    engine.resume()
    return ring, engine


def save_ring(ring: Ring, engine: CheckpointEngine, step: int) -> int:
    """Add rows and save; return how many bytes of rows were captured."""
    for value in range(100):
        ring.add(value + step)
    snapshot = engine._save(step, reason="test", position="step")
    return sum(b.nbytes for c in snapshot.components.values() for b in c.blobs if isinstance(b, Rows))


def saved_states(root: Path, writer: str) -> tuple[list[Snapshot], list[int]]:
    """Return what three saves of a growing ring hold, and how many of its bytes each took."""
    ring, engine = ring_of(root, writer)
    taken: list[int] = []
    for step in (1, 2, 3):
        taken.append(save_ring(ring, engine, step))
        engine.wait()
    engine.close()
    kept = repository(root)
    return [kept.load(commit) for commit in kept.commits()], taken


def test_it_writes_what_a_thread_writes_also_of_rings_in_parts(tmp_path: Path) -> None:
    there, taken = saved_states(tmp_path / "process", "process")
    here, also_taken = saved_states(tmp_path / "thread", "thread")
    assert taken == also_taken
    assert taken[2] < 300 * ROW, "it builds on what the companion has committed"
    assert len(there) == len(here) == 4
    for one, other in zip(there, here, strict=True):
        assert list(compare(one, other)) == []


def damage_row(root: Path, row: int) -> None:
    """Damage the chunk of the newest checkpoint that holds this row, where it is stored."""
    kept = repository(root)
    saved = kept.load(kept.commits()[0]).components["training_state"].saved
    (base,) = saved.values()
    index = BlobIndex(kept.store)
    index.refresh()
    chunk = ChunkLists(index).get(base.name, base.count)[row * ROW // base.chunk]
    (place,) = index.places(chunk)
    path = root / "run" / layout.pack(place.pack)
    data = bytearray(path.read_bytes())
    data[place.entry.offset + place.entry.length - 1] ^= 1
    path.write_bytes(bytes(data))


def test_a_damaged_chunk_that_was_written_anew_is_built_on_again(root: Path) -> None:
    ring, engine = ring_of(root, "process")
    for step in (1, 2):
        save_ring(ring, engine, step)
        engine.wait()
    abandon(engine)
    damage_row(root, 150)
    ring, engine = ring_of(root, "process")
    assert ring.adds == 100, "the newest is passed over"
    taken: list[int] = []
    for step in (2, 3, 4):  # the first writes the very same rows once more
        taken.append(save_ring(ring, engine, step))
        engine.wait()
    engine.close()
    assert max(taken) < 200 * ROW
    kept = repository(root)
    assert [fault for commit in kept.commits()[:3] for fault in kept.verify(commit)] == []


@pytest.mark.parametrize("error", [StoreUnavailable, CorruptObject])
def test_an_audit_that_cannot_look_fails_no_save_and_nothing_is_built_on(
    root: Path, monkeypatch: pytest.MonkeyPatch, error: type[UnbrokenError]
) -> None:
    ring, engine = ring_of(root, "process")
    save_ring(ring, engine, 1)
    engine.wait()

    def refuse(run: RunWriter, base: Base) -> ChunkList:
        raise error("It cannot be read.")

    with monkeypatch.context() as patch:
        patch.setattr(RunWriter, "chunks", refuse)
        save_ring(ring, engine, 2)
        engine.wait()
    assert save_ring(ring, engine, 3) == 300 * ROW
    engine.wait()
    assert save_ring(ring, engine, 4) < 200 * ROW
    engine.close()
    assert steps_of(root) == [4, 3, 2, 1, 0]


def test_weights_that_are_not_finite_are_found_by_the_companion(root: Path) -> None:
    training, engine = companioned(root)
    engine.resume()
    training.net.weights[3, 3] = np.nan
    engine.save(5, reason="test", wait=True)
    engine.close()
    assert [commit.good for commit in repository(root).commits()] == [False, True]


class Elsewhere(GraftSource):
    """A source with a look of its own, for which the companion would have to import this test."""

    looked_in: int

    def sick_places(self, snapshot: Snapshot) -> dict[str, str]:
        self.looked_in = os.getpid()
        return {"weights": "training_state"} if snapshot.counters["steps"] == 5 else {}


def test_what_cannot_be_found_by_its_name_is_looked_at_before(root: Path) -> None:
    facts = {"steps": 0}
    source = Elsewhere({"weights": np.zeros(9)}, policy_of_loaded(), facts=lambda: facts)
    engine = CheckpointEngine(source, Settings(root=root, job="run", writer="process"), environment={})
    engine.resume()
    facts["steps"] = 5
    engine.save(5, reason="test", wait=True)
    engine.close()
    assert source.looked_in == os.getpid()
    assert [commit.good for commit in repository(root).commits()] == [False, True]


# The training is killed


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many calls a save makes in the training, from its beginning until it returns."""
    root = tmp_path_factory.mktemp("counted")
    training, engine = companioned(root)
    engine.resume()
    train(engine, training, start=0, until=20)
    with Countdown(-1, die) as counted:
        engine.save(20, reason="test")
    engine.close()
    return counted.count


@pytest.mark.parametrize("share", [0.1, 0.57, 0.8, 0.93, 0.945, 0.955, 0.97, 1.0, 1.01])
def test_killed_at_any_moment_of_a_save_nothing_is_lost_or_half_there(
    root: Path, calls: int, share: float
) -> None:
    def killed() -> None:
        training, engine = companioned(root)
        engine.resume()
        train(engine, training, start=0, until=20)
        with Countdown(int(share * calls), die):
            engine.save(20, reason="test")
            (root / "returned").touch()
        die()

    assert in_child(killed) == -signal.SIGKILL
    step = goes_on_exactly(root)
    assert step == 20 if (root / "returned").exists() else step in (10, 20)


def stopped_before_it_writes(root: Path, *, then: str) -> None:
    """A training whose companion is given a save and does not come to write it."""
    training, engine = companioned(root)
    engine.resume()
    train(engine, training, start=0, until=20)
    os.kill(pid_of(engine), signal.SIGSTOP)
    engine.save(20, reason="test")
    if then == "both":
        os.kill(pid_of(engine), signal.SIGKILL)
    die()


def test_the_next_start_waits_for_what_is_on_its_way(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_child(lambda: stopped_before_it_writes(root, then="trainer")) == -signal.SIGKILL
    wait, waited = Process.wait, list[int]()

    def let_it_go_on(process: Process, timeout: float) -> bool:
        if not waited:
            assert steps_of(root) == [10, 0], "it has not even begun"
            os.kill(process.pid, signal.SIGCONT)
        waited.append(process.pid)
        return wait(process, timeout)

    monkeypatch.setattr(Process, "wait", let_it_go_on)
    companion = companion_of(root)
    assert goes_on_exactly(root) == 20
    assert waited[0] == companion


def test_one_that_does_not_end_is_left_and_can_do_no_harm(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert in_child(lambda: stopped_before_it_writes(root, then="trainer")) == -signal.SIGKILL
    companion = companion_of(root)
    monkeypatch.setattr(Process, "wait", lambda _process, _timeout: False)
    with pytest.warns(CompanionLeftWarning, match=str(companion)):
        assert goes_on_exactly(root) == 10
    before = repository(root).commits()
    os.kill(companion, signal.SIGCONT)
    assert ended(companion)
    assert repository(root).commits() == before


def test_killed_together_with_the_companion_the_save_before_is_there(root: Path) -> None:
    assert in_child(lambda: stopped_before_it_writes(root, then="both")) == -signal.SIGKILL
    assert goes_on_exactly(root) == 10


def test_a_training_that_ends_without_a_word_has_saved(root: Path) -> None:
    def silent() -> None:
        training, engine = companioned(root)
        engine.resume()
        train(engine, training, start=0, until=20)
        engine.save(20, reason="test")
        os._exit(0)

    assert in_child(silent) == 0
    assert ended(companion_of(root))
    assert steps_of(root)[0] == 20


ENDS = """
import sys
from pathlib import Path
from tests.engine.training import Training, engine_of
training = Training()
engine = engine_of(training, Path(sys.argv[1]), writer="process")
engine.resume()
engine.save(7, reason="test")
print(engine._companion.pid)
"""


def test_a_script_that_just_ends_waits_for_its_save_and_for_the_process(root: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ENDS, str(root)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert not Path(f"/proc/{int(done.stdout)}").exists()
    assert steps_of(root) == [7, 0]
    assert [record.event for record in repository(root).history()] == ["start", "end"]


# Children of the training


def fork_in_c() -> int:
    """Fork behind Python's back: no handler runs in the child."""
    return int(ctypes.PyDLL(None).fork())


@pytest.mark.parametrize("fork", [os.fork, fork_in_c])
def test_workers_that_outlive_the_training_keep_neither_the_companion_nor_its_memory(
    root: Path, fork: Any
) -> None:
    told, telling = os.pipe()

    def with_worker() -> None:
        training, engine = companioned(root)
        engine.resume()
        train(engine, training, start=0, until=20)
        os.kill(pid_of(engine), signal.SIGSTOP)
        engine.save(20, reason="test")
        worker = fork()
        if worker == 0:
            signal.pause()  # until the test ends it: forked in C, it may be unable to do anything else
        os.write(telling, b"%d" % worker)
        os.kill(pid_of(engine), signal.SIGCONT)
        die()

    assert in_child(with_worker) == -signal.SIGKILL
    worker = int(os.read(told, 100))
    try:
        assert ended(companion_of(root))
        assert steps_of(root)[0] == 20
        held = holders_of_memory().get(worker, [])
    finally:
        os.kill(worker, signal.SIGKILL)
        os.close(told)
        os.close(telling)
    if fork is os.fork:
        assert held == []
    else:
        assert all(line.startswith("/memfd:") for line in held), "no mapping in any case"


# The companion fails


def test_a_killed_companion_is_told_and_the_save_is_due_again(root: Path) -> None:
    training, engine = companioned(root)
    engine.resume()
    train(engine, training, start=0, until=20)
    first = pid_of(engine)
    os.kill(first, signal.SIGSTOP)
    engine.save(20, reason="test")
    os.kill(first, signal.SIGKILL)
    engine._writer.wait()
    with pytest.raises(SaveFailed, match="signal 9"):
        engine.step(20)
    assert engine.step(20), "it is due at once"
    engine.wait()
    assert pid_of(engine) != first
    kept = repository(root).commits()
    assert [(commit.step, commit.epoch) for commit in kept] == [(20, 2), (10, 1), (0, 1)]
    abandon(engine)
    assert goes_on_exactly(root) == 20


def test_after_its_death_nothing_is_built_on(root: Path) -> None:
    """It may have committed and deleted, and nobody knows how far it had come."""
    ring, engine = ring_of(root, "process")
    save_ring(ring, engine, 1)
    engine.wait()
    os.kill(pid_of(engine), signal.SIGSTOP)
    save_ring(ring, engine, 2)
    os.kill(pid_of(engine), signal.SIGKILL)
    with pytest.raises(SaveFailed):
        engine.wait()
    assert save_ring(ring, engine, 3) == 300 * ROW
    engine.close()


def test_a_companion_that_is_killed_while_it_has_nothing_to_do_is_replaced(root: Path) -> None:
    training, engine = companioned(root)
    engine.resume()
    first = pid_of(engine)
    os.kill(first, signal.SIGKILL)
    assert ended(first)
    train(engine, training, start=0, until=15)
    assert pid_of(engine) != first
    assert companion_of(root) == pid_of(engine)
    engine.close()
    assert steps_of(root) == [10, 0]


def test_what_fails_in_the_companion_is_raised_here_as_what_it_is(root: Path) -> None:
    _, engine = companioned(root)
    engine.resume()
    repair = break_store(root)
    engine.save(10, reason="test")
    engine._writer.wait()
    with pytest.raises(SaveFailed) as raised:
        engine.step(11)
    assert isinstance(raised.value.__cause__, StoreError)
    assert raised.value.__cause__.key
    pid = pid_of(engine)
    repair()
    assert engine.step(12)
    engine.wait()
    assert pid_of(engine) == pid, "it is still the same one"
    engine.close()
    assert steps_of(root) == [12, 0]


def test_a_full_disk_in_the_companion_costs_only_the_save(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=1m", "unbroken-test") as where:
        state = {"noise": np.random.default_rng(1).bytes(1000)}
        source = GraftSource({"state": state}, policy_of_loaded())
        settings = Settings(root=where, job="run", writer="process")
        engine = CheckpointEngine(source, settings, environment={})
        engine.resume()
        state["noise"] = np.random.default_rng(2).bytes(2 << 20)
        engine.save(1, reason="test")
        engine._writer.wait()
        with pytest.raises(SaveFailed) as raised:
            engine.step(1)
        assert isinstance(raised.value.__cause__, StoreFull)
        state["noise"] = b"little"
        assert engine.step(2)
        engine.close()
        assert steps_of(where) == [2, 0]


# Memory


def test_staging_is_used_again_only_when_the_companion_is_done_with_it(root: Path) -> None:
    training, engine = companioned(root)
    engine.resume()
    train(engine, training, start=0, until=20)
    truth = own(source_of(training).capture())
    os.kill(pid_of(engine), signal.SIGSTOP)
    engine.save(20, reason="test")
    for step in range(20, 45):
        assert not engine.step(step), "the save before is still being written"
        training.step()
    os.kill(pid_of(engine), signal.SIGCONT)
    engine.save(45, reason="test")
    engine.close()
    kept = repository(root)
    saved = {int(commit.step): kept.load(commit) for commit in kept.commits()}
    assert list(compare(saved[20], truth)) == []
    assert list(compare(saved[45], own(source_of(training).capture()))) == []


def test_what_does_not_fit_is_written_by_the_training_itself(root: Path) -> None:
    """The pen changes hands: numbers go up, and what stays can be read."""
    _, engine = companioned(root, keep_last=2)
    engine.resume()
    engine.save(1, reason="test", wait=True)
    first = pid_of(engine)
    ceiling, engine._snapshots._staging._ceiling = engine._snapshots._staging._ceiling, lambda: 0
    engine._snapshots._staging.release()
    with pytest.warns(StagingFullWarning):
        engine.save(2, reason="test")
    assert engine._companion is not None
    assert engine._companion.pid is None
    assert ended(first)
    engine._snapshots._staging._ceiling = ceiling
    engine.save(3, reason="test", wait=True)
    assert pid_of(engine) != first
    engine.save(4, reason="end of training", position="end")
    engine.close()
    kept = repository(root)
    assert [(commit.step, commit.sequence) for commit in kept.commits()] == [(4, 5), (3, 4)]
    assert [fault for commit in kept.commits() for fault in kept.verify(commit)] == []


def test_nothing_is_left_of_it(root: Path) -> None:
    before = Counter(holders_of_memory().get(os.getpid(), []))
    training, engine = companioned(root)
    engine.resume()
    train(engine, training, start=0, until=25)
    pid = pid_of(engine)
    engine.close()
    del engine
    assert not Path(f"/proc/{pid}").exists(), "not even a zombie"
    # Counted: descriptors of a name all read alike, so that one of an earlier test would hide ours.
    assert Counter(holders_of_memory().get(os.getpid(), [])) <= before
    assert not [entry.name for entry in Path("/dev/shm").iterdir() if "unbroken" in entry.name]
    files = {path.name for path in (root / "run").iterdir()}
    assert "lease.json" not in files
    assert not [path for path in (root / "run").rglob("*") if path.name.startswith(".")]


# Its surroundings


@pytest.fixture
def stolen_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with files that have the names of modules."""
    for name in ("json", "numpy", "msgspec", "socket"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("stolen_path")
def test_it_imports_from_where_the_training_does(root: Path) -> None:
    _, engine = companioned(root)
    engine.resume()
    engine.close()
    assert steps_of(root) == [0]


def test_it_has_a_session_of_its_own_and_ignores_the_signals_that_end_trainings(root: Path) -> None:
    _, engine = companioned(root)
    engine.resume()
    pid = pid_of(engine)
    assert os.getsid(pid) == pid
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    engine.save(1, reason="test", wait=True)
    assert pid_of(engine) == pid
    engine.close()


def test_it_imports_no_framework() -> None:
    show = "import sys, unbroken.engine.companion.process, unbroken.capture.weights; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    frameworks = {"torch", "gymnasium", "stable_baselines3", "pandas", "obstore", "rich", "typer"}
    assert not frameworks & set(done.stdout.split())


def test_settings_name_it() -> None:
    assert Settings(root="runs", every=Every(steps=1)).writer == "thread"
