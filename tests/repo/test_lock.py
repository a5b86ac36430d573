from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from unbroken.errors import Fenced, InternalError, RunBusy, StoreError, StoreUnavailable
from unbroken.format import layout
from unbroken.format.records import Lease
from unbroken.repo.lock import RunLock, read_lease
from unbroken.repo.process import Process, current, identify
from unbroken.repo.repository import Repository
from unbroken.repo.roots import HINTS
from unbroken.repo.seal import seal
from unbroken.store.hinted import HintedStore
from unbroken.store.local import LocalStore
from unbroken.store.memory import MemoryStore
from unbroken.types import Epoch, Step

from .states import meta, snapshot

HOLDER = """
import sys
from unbroken.repo.repository import Repository
writer = Repository.open(sys.argv[1], "job", create=True).writer()
print("holding", flush=True)
sys.stdin.readline()
writer.close()
print("released", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that writes to the run."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "holding\n"
    yield process
    process.kill()
    process.communicate()


def lease(owner: Process) -> bytes:
    return seal(
        Lease(
            pid=owner.pid,
            process_start=owner.start,
            boot_id=owner.boot_id,
            host=owner.host,
            epoch=Epoch(1),
        )
    )


def test_another_process_is_named_and_nothing_is_touched(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    with pytest.raises(RunBusy, match=f"in use by process {holder.pid} on"):
        Repository.open(tmp_path, "job").writer()
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before, "the other was not fenced off"


def test_a_run_that_was_given_back_is_free(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdin.write("\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == "released\n"
    with Repository.open(tmp_path, "job").writer() as writer:
        assert writer.epoch == 2


def test_a_dead_process_blocks_nobody(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    assert read_lease(LocalStore(tmp_path / "job")) is not None, "its record is still there"
    with Repository.open(tmp_path, "job").writer() as writer:
        assert writer.epoch == 2


def test_a_stopped_process_still_holds_the_run(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
    with pytest.raises(RunBusy):
        Repository.open(tmp_path, "job").writer()


def test_a_lost_lock_is_made_up_for_by_the_record(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    (tmp_path / "job" / "lock").unlink()  # a network file system that has forgotten the lock
    with pytest.raises(RunBusy, match=str(holder.pid)):
        Repository.open(tmp_path, "job").writer()


def test_a_lost_record_is_made_up_for_by_the_lock(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    (tmp_path / "job" / layout.LEASE).unlink()
    with pytest.raises(RunBusy, match="another process"):
        Repository.open(tmp_path, "job").writer()
    assert holder.poll() is None


def test_this_process_cannot_open_a_run_twice(tmp_path: Path) -> None:
    repository = Repository.open(tmp_path, "job", create=True)
    with repository.writer(), pytest.raises(RunBusy, match="This process already writes"):
        Repository.open(tmp_path, "job").writer()
    with repository.writer() as writer:
        writer.close()
        writer.close()


def test_reading_does_not_give_the_lock_away(tmp_path: Path) -> None:
    """A POSIX lock is dropped when any descriptor of its file is closed."""
    repository = Repository.open(tmp_path, "job", create=True)
    with repository.writer() as writer:
        commit = writer.write(snapshot(), meta(1))
        reader = Repository.open(tmp_path, "job")
        reader.load(reader.commits()[0])
        reader.verify(commit)
        with pytest.raises(RunBusy):
            Repository.open(tmp_path, "job").writer()
        taking = "from unbroken.repo.repository import Repository as R; import sys; R.open(sys.argv[1], 'job').writer()"
        other = subprocess.run(
            [sys.executable, "-c", taking, str(tmp_path)], capture_output=True, text=True, check=False
        )
        assert "RunBusy" in other.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_neither_writes_nor_releases(tmp_path: Path) -> None:
    repository = Repository.open(tmp_path, "job", create=True)
    with repository.writer() as writer:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                writer.close()
                writer.write(snapshot(), meta(1))
            except InternalError:
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert read_lease(repository.store) is not None
        writer.write(snapshot(), meta(1))


class TestRecord:
    """The record alone, where there is no lock of the operating system."""

    def test_a_live_owner_blocks(self) -> None:
        store = MemoryStore()
        parent = identify(os.getppid())
        store.put(layout.LEASE, lease(parent))
        with pytest.raises(RunBusy, match=f"process {os.getppid()} "):
            RunLock.acquire(store, job="job")

    def test_a_reused_number_does_not_block(self) -> None:
        store = MemoryStore()
        store.put(layout.LEASE, lease(Process(os.getppid(), "1", current().boot_id, current().host)))
        RunLock.acquire(store, job="job").release()

    def test_number_one_of_an_earlier_container_does_not_block(self) -> None:
        store = MemoryStore()
        store.put(layout.LEASE, lease(Process(1, "12345678901", current().boot_id, current().host)))
        RunLock.acquire(store, job="job").release()

    def test_another_host_is_left_to_the_epochs(self) -> None:
        store = MemoryStore()
        store.put(layout.LEASE, lease(Process(os.getpid(), "1", "boot", "elsewhere")))
        RunLock.acquire(store, job="job").release()

    @pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xff"])
    def test_a_damaged_record_blocks_nobody(self, content: bytes) -> None:
        store = MemoryStore()
        store.put(layout.LEASE, content)
        RunLock.acquire(store, job="job").release()

    def test_release_leaves_the_record_of_a_successor(self) -> None:
        store = MemoryStore()
        lock = RunLock.acquire(store, job="job")
        successor = lease(Process(3, "1", "boot", "elsewhere"))
        store.put(layout.LEASE, successor)
        lock.release()
        assert store.get(layout.LEASE) == successor


@pytest.mark.parametrize("at", ["first", "after a conflict"])
def test_a_store_that_fails_while_the_lock_is_taken_leaves_it_free(
    tmp_path: Path, holder: subprocess.Popen[str], at: str
) -> None:
    class Failing(LocalStore):
        def get(self, key: str) -> bytes:
            if key == layout.LEASE:
                raise StoreUnavailable("no answer", key=key)
            return super().get(key)

    if at == "first":
        holder.kill()
        holder.wait()
    open_before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            RunLock.acquire(Failing(tmp_path / "job"), job="job")
    assert len(os.listdir("/proc/self/fd")) == open_before
    if at == "first":
        RunLock.acquire(LocalStore(tmp_path / "job"), job="job").release()


class TestBucket:
    """A run in a bucket: the lock lies on this machine, the record with the run."""

    @pytest.fixture
    def bucket(self) -> MemoryStore:
        return MemoryStore()

    def test_this_process_cannot_open_a_run_twice(self, bucket: MemoryStore, tmp_path: Path) -> None:
        first = RunLock.acquire(on(bucket, tmp_path), job="job")
        with pytest.raises(RunBusy, match="This process already writes"):
            RunLock.acquire(on(bucket, tmp_path), job="job")
        first.release()
        RunLock.acquire(on(bucket, tmp_path), job="job").release()
        assert bucket.list() == [], "the lock is no object of the run"

    def test_another_process_of_this_machine_is_kept_off(self, bucket: MemoryStore, tmp_path: Path) -> None:
        holding = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX);"
        other = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"{holding} print('holding', flush=True); sys.stdin.read()",
                tmp_path / "lock",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(RunBusy, match="another process"):
            RunLock.acquire(on(bucket, tmp_path), job="job")
        other.kill()
        other.communicate()
        RunLock.acquire(on(bucket, tmp_path), job="job").release()

    def test_another_machine_takes_over_and_the_first_is_fenced(
        self, bucket: MemoryStore, tmp_path: Path
    ) -> None:
        here = Repository.over(on(bucket, tmp_path / "here"), "job", create=True)
        there = Repository.over(on(bucket, tmp_path / "there"), "job")
        elsewhere = Process(os.getpid(), current().start, "another boot", "elsewhere")
        with here.writer() as first, there.writer(owner=elsewhere) as second:
            first.mark_pending(Step(1), "a hint on its own machine, which disturbs nobody")
            with pytest.raises(Fenced, match="on elsewhere"):
                first.write(snapshot(), meta(1))
            commit = second.write(snapshot(), meta(2))
        assert there.commits() == [commit]
        assert there.pending() is None

    def test_what_was_begun_is_known_on_this_machine_alone(self, bucket: MemoryStore, tmp_path: Path) -> None:
        here = Repository.over(on(bucket, tmp_path / "here"), "job", create=True)
        with here.writer() as writer:
            writer.mark_pending(Step(7), "asked for")
        pending = here.pending()
        assert pending is not None
        assert pending.step == 7
        assert Repository.over(on(bucket, tmp_path / "there"), "job").pending() is None

    def test_where_no_lock_can_lie_another_directory_is_asked_for(self, bucket: MemoryStore) -> None:
        with pytest.raises(StoreError) as caught:
            RunLock.acquire(on(bucket, Path("/proc/unbroken")), job="job")
        assert "UNBROKEN_STATE_DIR" in caught.value.hint


def on(bucket: MemoryStore, machine: Path) -> HintedStore:
    """Return the bucket as a machine sees it that keeps its hints there."""
    return HintedStore(bucket, LocalStore(machine), HINTS)
