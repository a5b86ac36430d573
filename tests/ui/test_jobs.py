"""Work in threads: one at a time of a kind, counted, stopped, and never silent."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from unbroken.errors import ConfigError, InternalError, StoreUnavailable
from unbroken.inspection.watched import PIECE, Watched
from unbroken.store.memory import MemoryStore
from unbroken.ui.app.bugs import HINT
from unbroken.ui.app.jobs import KEPT, WAITING, Cancelled, Job, Jobs, TooMany

PATIENCE = 30.0


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    made = Jobs(clock=lambda: 7.0)
    yield made
    made.close()


def test_work_is_done_and_its_result_kept(jobs: Jobs) -> None:
    def work(job: Job) -> str:
        job.told(2, 3, "the third")
        job.look(100)
        return "result"

    job = jobs.start("verify", "run", "Verify", work)
    assert job.wait(PATIENCE)
    assert (job.state, job.result, job.done, job.total, job.words, job.read) == (
        "done",
        "result",
        2,
        3,
        "the third",
        100,
    )
    assert jobs.get(job.id) is job
    assert jobs.latest("verify", "run") is job
    assert jobs.latest("verify", "other") is None


def test_the_same_work_is_not_done_twice_at_once(jobs: Jobs) -> None:
    go = threading.Event()

    def work(job: Job) -> bool:
        return go.wait(PATIENCE)

    first = jobs.start("verify", "run", "Verify", work, key=(1,))
    assert jobs.start("verify", "run", "Verify", work, key=(1,)) is first
    other = jobs.start("verify", "run", "Verify", work, key=(2,))
    assert other is not first
    go.set()
    assert first.wait(PATIENCE)
    assert other.wait(PATIENCE)
    again = jobs.start("verify", "run", "Verify", work, key=(1,))
    assert again is not first
    assert again.wait(PATIENCE)


def test_work_stops_where_it_reads_next(jobs: Jobs) -> None:
    store = MemoryStore()
    store.put("pack", b"x" * 100)
    reading, stopped = threading.Event(), threading.Event()

    def work(job: Job) -> None:
        watched = Watched(store, job.look)
        watched.get("pack")
        reading.set()
        stopped.wait(PATIENCE)
        watched.get("pack")
        raise AssertionError("it went on")

    job = jobs.start("verify", "run", "Verify", work)
    assert reading.wait(PATIENCE)
    job.cancel()
    assert job.is_stopping
    stopped.set()
    assert job.wait(PATIENCE)
    assert (job.state, job.read, job.problem) == ("cancelled", 100, "")


def test_work_that_was_stopped_before_it_began_never_begins(jobs: Jobs) -> None:
    go = threading.Event()
    busy = [jobs.start("a", str(n), "", lambda job: go.wait(PATIENCE)) for n in range(2)]
    begun: list[int] = []
    waiting = jobs.start("b", "run", "", lambda job: begun.append(1))
    waiting.cancel()
    go.set()
    assert waiting.wait(PATIENCE)
    assert (waiting.state, begun) == ("cancelled", [])
    assert all(job.wait(PATIENCE) for job in busy)


@pytest.mark.parametrize(
    ("error", "problem", "hint"),
    [
        (ConfigError("No such run.", hint="Look again."), "No such run.", "Look again."),
        (
            StoreUnavailable("It does not answer."),
            "It does not answer.",
            "Try again; what was committed before is intact.",
        ),
        (PermissionError(13, "Permission denied", "/a/b"), "/a/b: Permission denied.", ""),
        (ValueError("x"), "A bug in Unbroken: ValueError: x.", HINT),
        (InternalError("This cannot be."), "This cannot be.", HINT),
    ],
    ids=["ours", "the store's", "the system's", "a bug", "a bug that says so"],
)
def test_what_goes_wrong_is_told_and_a_bug_with_its_traceback(
    jobs: Jobs, error: Exception, problem: str, hint: str, caplog: pytest.LogCaptureFixture
) -> None:
    def work(job: Job) -> None:
        raise error

    job = jobs.start("verify", "run", "Verify", work)
    assert job.wait(PATIENCE)
    assert (job.state, job.problem, job.hint) == ("failed", problem, hint)
    if hint == HINT:
        assert "in work\n    raise error\n" in caplog.text
    else:
        assert caplog.text == ""


def test_what_is_shown_of_work_that_ends_meanwhile_is_of_one_moment(jobs: Jobs) -> None:
    go = threading.Event()
    job = jobs.start("verify", "run", "Verify", lambda job: go.wait(PATIENCE))
    before = job.seen()
    go.set()
    assert job.wait(PATIENCE)
    assert (before.is_over, before.state in ("waiting", "running"), before.result) == (False, True, None)
    after = job.seen()
    assert (after.is_over, after.state, after.result) == (True, "done", True)


def test_no_more_is_taken_on_than_can_be_waited_for(jobs: Jobs) -> None:
    go = threading.Event()
    taken = [jobs.start("a", str(n), "", lambda job: go.wait(PATIENCE)) for n in range(WAITING)]
    with pytest.raises(TooMany):
        jobs.start("a", "one more", "", lambda job: None)
    go.set()
    assert all(job.wait(PATIENCE) for job in taken)
    assert jobs.start("a", "one more", "", lambda job: None).wait(PATIENCE)


def test_what_is_over_is_forgotten_after_many_others(jobs: Jobs) -> None:
    made: list[Job] = []
    for n in range(KEPT + 10):
        job = jobs.start("a", "run", "", lambda job: None, key=(n,))
        assert job.wait(PATIENCE)
        made.append(job)
    assert jobs.get(made[0].id) is None
    assert jobs.get(made[-1].id) is made[-1]
    assert len(jobs.of("run")) <= KEPT + 1


def test_closing_stops_what_is_at_work() -> None:
    jobs = Jobs()
    begun = threading.Event()

    def work(job: Job) -> None:
        begun.set()
        while True:
            job.look()

    job = jobs.start("verify", "run", "Verify", work)
    assert begun.wait(PATIENCE)
    jobs.close()
    assert job.state == "cancelled"


def test_what_is_watched_is_only_looked_at() -> None:
    store = MemoryStore()
    store.put("pack", b"held")
    watched = Watched(store, lambda nbytes: None)
    for write in (
        watched.delete,
        lambda key: watched.put(key, b""),
        lambda key: watched.put_if_absent(key, b""),
    ):
        with pytest.raises(InternalError, match="by what only looks"):
            write("pack")
    assert store.get("pack") == b"held"


def test_a_large_read_is_stopped_in_its_middle() -> None:
    store = MemoryStore()
    data = bytes(range(256)) * (3 * PIECE // 256)
    store.put("pack", data)
    looks: list[int] = []

    def told(nbytes: int) -> None:
        looks.append(nbytes)
        if sum(looks) >= PIECE:
            raise Cancelled

    target = bytearray(len(data))
    with pytest.raises(Cancelled):
        Watched(store, told).read_into("pack", 0, [memoryview(target)])
    assert sum(looks) == PIECE
    whole = bytearray(len(data) - 10)
    parts = [memoryview(whole)[:5], memoryview(whole)[5 : PIECE + 9], memoryview(whole)[PIECE + 9 :]]
    assert Watched(store, lambda nbytes: None).read_into("pack", 10, parts) == len(data) - 10
    assert whole == data[10:]
