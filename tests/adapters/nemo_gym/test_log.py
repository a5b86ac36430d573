"""The log: what was acknowledged is there, whoever dies when; what cannot be is said."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from unbroken.adapters.nemo_gym.log import LOG, PREVIOUS, Damaged, Line, Log
from unbroken.errors import ConfigError, CorruptObject, RunBusy, StoreError, StoreFull, Untrusted
from unbroken.format.buffers import Buffer
from unbroken.store.system import System
from unbroken.testing.faulty_store import Stopped
from unbroken.testing.faulty_system import (
    FailingSystem,
    NoLinks,
    RecordingSystem,
    ShortCalls,
    StoppingSystem,
    fail,
    os_error,
)

KEY = b"k" * 32
OLD = [Line("a", b"1"), Line("b", b"2" * 100), Line("", b"3")]
NEW = [Line("a", b"all"), Line("b", b"")]


class CountingSystem(System):
    """Counts syncs; each waits until `go` is set."""

    def __init__(self) -> None:
        self.syncs = 0
        self.begun = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def fsync(self, descriptor: int) -> None:
        self.syncs += 1
        self.begun.set()
        assert self.go.wait(60)
        super().fsync(descriptor)


def fill(directory: Path, lines: list[Line], *, system: System | None = None) -> None:
    log = Log.open(directory, key=KEY, system=system)
    for line in lines:
        log.append(line.label, line.payload)
    log.close()


def read(directory: Path) -> list[Line]:
    log = Log.open(directory, key=KEY)
    log.close()
    assert log.damaged == []
    return log.lines


def test_what_was_appended_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    directory = tmp_path / "gym" / "counter"
    fill(directory, OLD[:2])
    fill(directory, OLD[2:])
    log = Log.open(directory, key=KEY)
    assert (log.lines, log.notes, log.damaged) == (OLD, [], [])
    assert log.size == (directory / LOG).stat().st_size
    log.forget()
    assert log.lines == []
    log.close()
    log.close()


def test_what_was_read_is_durable_before_anything_is_built_on_it(tmp_path: Path) -> None:
    fill(tmp_path, OLD)
    system = RecordingSystem()
    log = Log.open(tmp_path, key=KEY, system=system)
    assert {("fsync", str(tmp_path / LOG)), ("fsync", str(tmp_path))} <= set(system.calls)
    log.close()


def test_everything_is_for_its_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        log = Log.open(tmp_path / "gym", key=KEY)
        log.rewrite(NEW)
        log.close()
    finally:
        os.umask(umask)
    assert (tmp_path / "gym").stat().st_mode & 0o777 == 0o700
    files = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "gym").iterdir()}
    assert files == {LOG: 0o600, PREVIOUS: 0o600, "lock": 0o600}


def test_calls_that_take_only_a_part_lose_nothing(tmp_path: Path) -> None:
    lines = [*OLD, Line("large", b"x" * 70_000)]
    fill(tmp_path, lines, system=ShortCalls(97))
    assert read(tmp_path) == lines


def test_a_torn_last_line_is_trimmed_and_said(tmp_path: Path) -> None:
    fill(tmp_path, OLD)
    whole = (tmp_path / LOG).read_bytes()
    (tmp_path / LOG).write_bytes(whole[:-1])
    log = Log.open(tmp_path, key=KEY)
    assert log.lines == OLD[:2]
    (note,) = log.notes
    assert note == f"a torn last line of {len(whole) - 1 - log.size} bytes was trimmed"
    assert (tmp_path / LOG).stat().st_size == log.size
    log.append("c", b"4")
    log.close()
    assert read(tmp_path) == [*OLD[:2], Line("c", b"4")]


def test_a_damaged_byte_costs_one_line_and_is_said(tmp_path: Path) -> None:
    fill(tmp_path, OLD)
    whole = (tmp_path / LOG).read_bytes()
    ends = [len(whole) - 1, whole.index(b"2" * 100), whole.index(b"1", whole.index(b"\xabUG", 4))]
    for at, lost in zip(ends, (2, 1, 0), strict=True):
        spoilt = whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]
        (tmp_path / LOG).write_bytes(spoilt)
        log = Log.open(tmp_path, key=KEY)
        log.close()
        assert log.lines == [line for n, line in enumerate(OLD) if n != lost]
        assert [damaged.label for damaged in log.damaged] == [OLD[lost].label]
        assert (tmp_path / LOG).read_bytes() == spoilt, "nobody repairs it by throwing something away"


def test_what_is_appended_behind_a_damaged_line_is_read(tmp_path: Path) -> None:
    fill(tmp_path, OLD)
    whole = (tmp_path / LOG).read_bytes()
    (tmp_path / LOG).write_bytes(whole[:-1] + b"?")
    fill(tmp_path, NEW)
    log = Log.open(tmp_path, key=KEY)
    log.close()
    assert (log.lines, log.damaged) == ([*OLD[:2], *NEW], [Damaged("", "its seal does not fit")])


def test_a_log_of_another_key_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    fill(tmp_path, OLD)
    before = (tmp_path / LOG).read_bytes() + b"\xabUG\x01torn"
    (tmp_path / LOG).write_bytes(before)
    with pytest.raises(Untrusted, match=r"another key.* Set UNBROKEN_KEY"):
        Log.open(tmp_path, key=b"j" * 32)
    assert (tmp_path / LOG).read_bytes() == before
    assert read(tmp_path) == OLD


@pytest.mark.parametrize("content", [b"", b"no log", b"\xabUG\x01", bytes(4096)])
def test_a_file_that_is_no_log_is_refused_and_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    (tmp_path / LOG).write_bytes(content)
    with pytest.raises(CorruptObject, match="Not one line of"):
        Log.open(tmp_path, key=KEY)
    assert (tmp_path / LOG).read_bytes() == content


def test_a_path_that_cannot_hold_a_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="file"):
        Log.open(tmp_path / "file", key=KEY)
    (tmp_path / "folder" / LOG).mkdir(parents=True)
    with pytest.raises(StoreError, match="it is a directory"):
        Log.open(tmp_path / "folder", key=KEY)
    (tmp_path / "folder" / LOG).rmdir()
    fill(tmp_path / "folder", OLD)  # a failed start holds no lock


def test_what_does_not_fit_is_refused_and_nothing_else_is(tmp_path: Path) -> None:
    log = Log.open(tmp_path, key=KEY)
    with pytest.raises(ConfigError, match="too long"):
        log.append("x" * 70_000, b"")
    log.append("a", b"1")
    with pytest.raises(ConfigError, match="too long"):
        log.rewrite([Line("x" * 70_000, b"")])
    log.close()
    assert read(tmp_path) == OLD[:1]


# Who waits.


def test_those_who_wait_share_one_sync(tmp_path: Path) -> None:
    system = CountingSystem()
    log = Log.open(tmp_path, key=KEY, system=system)

    async def run() -> None:
        system.begun.clear()
        system.go.clear()
        before = system.syncs
        first = asyncio.create_task(log.durable(log.append("first", b"")))
        await asyncio.to_thread(system.begun.wait)
        # A sync is under way: what is appended now is not covered by it, and waits for the next.
        others = [asyncio.create_task(log.durable(log.append("x", b"y"))) for _ in range(64)]
        await asyncio.sleep(0)
        assert not first.done()
        system.go.set()
        await asyncio.gather(first, *others)
        assert system.syncs == before + 2

    asyncio.run(run())
    before = system.syncs
    log.flush()
    asyncio.run(log.durable(1))
    log.close()
    assert system.syncs == before, "everything was durable"


def test_lines_for_which_nobody_waits_are_durable_with_the_next_and_at_the_end(tmp_path: Path) -> None:
    system = CountingSystem()
    log = Log.open(tmp_path, key=KEY, system=system)
    before = system.syncs
    early = log.append("a", b"")
    asyncio.run(log.durable(log.append("b", b"")))
    asyncio.run(log.durable(early))
    assert system.syncs == before + 1
    log.append("c", b"")
    log.flush()
    assert system.syncs == before + 2
    log.append("d", b"")
    log.close()
    assert system.syncs == before + 3


def test_without_sync_nothing_waits(tmp_path: Path) -> None:
    system = CountingSystem()
    log = Log.open(tmp_path, key=KEY, sync=False, system=system)
    before = system.syncs
    asyncio.run(log.durable(log.append("a", b"1")))
    log.flush()
    log.rewrite(OLD)
    log.close()
    assert system.syncs == before
    assert read(tmp_path) == OLD


def test_one_who_gives_up_hinders_nobody(tmp_path: Path) -> None:
    system = CountingSystem()
    log = Log.open(tmp_path, key=KEY, system=system)

    async def run() -> None:
        system.begun.clear()
        system.go.clear()
        tasks = [asyncio.create_task(log.durable(log.append("x", b""))) for _ in range(3)]
        await asyncio.to_thread(system.begun.wait)
        tasks[1].cancel()
        system.go.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [type(None), asyncio.CancelledError, type(None)]

    asyncio.run(run())
    log.close()


def test_waiters_of_a_loop_that_is_gone_hinder_nobody(tmp_path: Path) -> None:
    system = CountingSystem()
    log = Log.open(tmp_path, key=KEY, system=system)
    system.begun.clear()
    system.go.clear()
    loop = asyncio.new_event_loop()
    task = loop.create_task(log.durable(log.append("x", b"")))
    loop.run_until_complete(asyncio.sleep(0))
    task.cancel()
    with suppress(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()
    assert system.begun.wait(60)
    system.go.set()
    asyncio.run(log.durable(log.append("y", b"")))
    log.close()


def test_its_thread_begins_with_the_first_who_waits_and_ends_with_the_log(tmp_path: Path) -> None:
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "unbroken-log"]

    log = Log.open(tmp_path, key=KEY)
    ticket = log.append("a", b"1")
    assert threads() == []
    asyncio.run(log.durable(ticket))
    assert threads() == ["unbroken-log"]
    log.close()
    assert threads() == []


def test_a_ticket_that_was_never_given_is_refused(tmp_path: Path) -> None:
    log = Log.open(tmp_path, key=KEY)
    with pytest.raises(ConfigError, match="1 is no ticket"):
        asyncio.run(log.durable(1))
    log.close()


def test_several_threads_lose_nothing(tmp_path: Path) -> None:
    log = Log.open(tmp_path, key=KEY, sync=False)

    def work(name: str) -> None:
        for n in range(200):
            log.append(name, str(n).encode())

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    lines = read(tmp_path)
    for name in "abcd":
        assert [line.payload for line in lines if line.label == name] == [b"%d" % n for n in range(200)]


# What fails.


def test_a_full_disk_stops_the_log_and_leaves_it_readable(tmp_path: Path) -> None:
    class Full(System):
        room = 10**9

        def write(self, descriptor: int, data: Buffer) -> int:
            if not self.room:
                raise os_error(errno.ENOSPC)
            count = super().write(descriptor, memoryview(data)[: self.room])
            self.room -= count
            return count

    system = Full()
    log = Log.open(tmp_path, key=KEY, system=system)
    for line in OLD:
        log.append(line.label, line.payload)
    system.room = 20
    with pytest.raises(StoreFull, match=r"takes nothing more.*Remove the cause"):
        log.append("c", b"4")
    assert (tmp_path / LOG).stat().st_size == log.size, "the part that was written is taken back"
    system.room = 10**9
    for again in (lambda: log.append("c", b"4"), log.flush, lambda: log.rewrite(NEW), log.previous):
        with pytest.raises(StoreFull):
            again()
    with pytest.raises(StoreFull):
        log.close()
    log.close()
    again_open = Log.open(tmp_path, key=KEY)
    assert (again_open.lines, again_open.notes) == (OLD, [])
    again_open.close()


def test_a_sync_that_fails_is_told_to_all_who_wait(tmp_path: Path) -> None:
    broken = [False]
    system = FailingSystem(lambda call, _: errno.EIO if broken[0] and call == "fsync" else 0)
    log = Log.open(tmp_path, key=KEY, system=system)
    kept = log.append("a", b"1")
    asyncio.run(log.durable(kept))
    broken[0] = True

    async def run() -> list[BaseException | None]:
        tickets = [log.append("x", b"") for _ in range(5)]
        return await asyncio.gather(*map(log.durable, tickets), return_exceptions=True)

    errors = asyncio.run(run())
    assert [type(error).__mro__[1] for error in errors] == [StoreError] * 5
    assert len(set(map(id, errors))) == 5
    broken[0] = False  # after a failed sync the pages may be gone: a later one that works means nothing
    with pytest.raises(StoreError, match="takes nothing more"):
        log.append("y", b"")
    with pytest.raises(StoreError):
        asyncio.run(log.durable(kept + 1))
    asyncio.run(log.durable(kept))
    with pytest.raises(StoreError):
        log.close()
    assert read(tmp_path)[:1] == OLD[:1]


@pytest.mark.parametrize("rewritten", [False, True])
def test_a_log_that_is_deleted_while_it_is_open_takes_nothing_more(tmp_path: Path, rewritten: bool) -> None:
    log = Log.open(tmp_path / "logs" / "res", key=KEY)
    asyncio.run(log.durable(log.append("a", b"1")))
    if rewritten:
        log.rewrite(OLD)
        asyncio.run(log.durable(log.append("a", b"2")))
    shutil.rmtree(tmp_path / "logs")
    ticket = log.append("b", b"1")
    with pytest.raises(StoreError, match="was deleted while this process wrote it") as caught:
        asyncio.run(log.durable(ticket))
    assert "Start this server again" in caught.value.hint
    with pytest.raises(StoreError, match="was deleted"):
        log.append("b", b"2")
    with pytest.raises(StoreError, match="was deleted"):
        log.close()


def test_a_closed_log_says_so(tmp_path: Path) -> None:
    log = Log.open(tmp_path, key=KEY)
    ticket = log.append("a", b"1")
    log.close()
    asyncio.run(log.durable(ticket))
    for use in (lambda: log.append("b", b""), log.flush, lambda: log.rewrite([]), log.previous):
        with pytest.raises(StoreError, match=r"is closed\. Open it again"):
            use()


# A new generation.


def test_what_came_before_a_rewrite_needs_no_sync_any_more(tmp_path: Path) -> None:
    system = CountingSystem()
    log = Log.open(tmp_path, key=KEY, system=system)
    ticket = log.append("a", b"1")
    log.rewrite([Line("a", b"1")])
    before = system.syncs
    asyncio.run(log.durable(ticket))
    log.close()
    assert system.syncs == before


def test_a_rewrite_takes_the_place_and_keeps_the_former(tmp_path: Path) -> None:
    fill(tmp_path, OLD)
    log = Log.open(tmp_path, key=KEY)
    assert log.previous() == []
    ticket = log.append("late", b"")
    log.rewrite(iter(NEW))
    asyncio.run(log.durable(ticket))
    assert log.previous() == [*OLD, Line("late", b"")]
    assert log.size == (tmp_path / LOG).stat().st_size
    asyncio.run(log.durable(log.append("c", b"4")))
    log.rewrite([])
    assert log.previous() == [*NEW, Line("c", b"4")]
    log.append("d", b"5")
    log.close()
    assert read(tmp_path) == [Line("d", b"5")]
    assert sorted(os.listdir(tmp_path)) == ["lock", LOG, PREVIOUS]


class HeldSystem(System):
    """Waits before it makes a new file until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def open(self, path: str | os.PathLike[str], flags: int, mode: int = 0, *, at: int | None = None) -> int:
        if path == "log.new":
            self.begun.set()
            assert self.go_on.wait(30)
        return super().open(path, flags, mode, at=at)


def test_what_is_appended_during_a_rewrite_aside_is_in_the_new_log(tmp_path: Path) -> None:
    fill(tmp_path, OLD)
    system = HeldSystem()
    log = Log.open(tmp_path, key=KEY, system=system)

    async def scenario() -> None:
        log.append("early", b"0")
        rewriting = asyncio.create_task(log.rewrite_aside(NEW))
        await asyncio.to_thread(system.begun.wait, 30)
        ticket = log.append("late", b"1")  # is not held up
        with pytest.raises(ConfigError, match="already"):
            await log.rewrite_aside([])
        waiting = asyncio.create_task(log.durable(ticket))
        system.go_on.set()
        await asyncio.gather(rewriting, waiting)
        await log.durable(log.append("after", b"2"))
        assert log.size == (tmp_path / LOG).stat().st_size

    asyncio.run(scenario())
    assert log.previous() == [*OLD, Line("early", b"0"), Line("late", b"1")]
    log.close()
    assert read(tmp_path) == [*NEW, Line("late", b"1"), Line("after", b"2")]
    assert sorted(os.listdir(tmp_path)) == ["lock", LOG, PREVIOUS]


def test_a_process_that_dies_anywhere_in_a_rewrite_aside_loses_nothing(tmp_path: Path) -> None:
    at = 0
    while True:
        directory = tmp_path / str(at)
        fill(directory, OLD)
        system = StoppingSystem()
        log = Log.open(directory, key=KEY, system=system)
        stop_after(system, at)
        told: list[Line] = []

        async def scenario(log: Log = log, told: list[Line] = told) -> None:
            rewriting = asyncio.create_task(log.rewrite_aside(NEW))
            await asyncio.sleep(0)
            with suppress(Stopped, StoreError):
                log.append("late", b"1")
                told.append(Line("late", b"1"))
            with suppress(Stopped, StoreError):
                await rewriting

        asyncio.run(scenario())
        with suppress(StoreError):
            log.close()
        log = Log.open(directory, key=KEY)
        log.close()
        assert log.damaged == []
        assert log.lines in ([*OLD, *told], [*NEW, *told]), at
        if not system.stopped:
            break
        at += 1
    assert at >= 9


def test_lines_of_the_former_generation_are_none_of_the_new(tmp_path: Path) -> None:
    log = Log.open(tmp_path, key=KEY)
    log.append("old", b"1")
    log.append("old", b"2")
    log.rewrite([Line("new", b"1")])
    log.close()
    former = (tmp_path / PREVIOUS).read_bytes()
    stale = former[former.rindex(b"\xabUG\x01") :]
    with (tmp_path / LOG).open("ab") as file:
        file.write(stale)
    log = Log.open(tmp_path, key=KEY)
    log.close()
    assert (log.lines, log.damaged) == (
        [Line("new", b"1")],
        [Damaged("old", "it belongs to another log")],
    )


def test_every_step_of_a_rewrite_is_durable_before_the_next_relies_on_it(tmp_path: Path) -> None:
    system = RecordingSystem()
    log = Log.open(tmp_path, key=KEY, system=system)
    system.calls.clear()
    log.rewrite(NEW[:1])
    steps = [(call, Path(path).name) for call, path in system.calls if call != "write"]
    log.close()
    assert steps == [
        ("fsync", "log.new"),
        ("link", "log.link"),
        ("replace", PREVIOUS),
        ("unlink", "log.link"),
        ("fsync", tmp_path.name),
        ("replace", LOG),
        ("fsync", tmp_path.name),
    ]


@pytest.mark.parametrize("links", [True, False])
def test_a_process_that_dies_anywhere_in_a_rewrite_loses_nothing(tmp_path: Path, links: bool) -> None:
    class Stopping(StoppingSystem):
        def link(self, source: str, target: str, *, at: int) -> None:
            if not links:
                raise os_error(errno.EPERM)
            super().link(source, target, at=at)

    before = [Line("older", b"0")]
    at = 0
    while True:
        directory = tmp_path / str(at)
        fill(directory, before)
        log = Log.open(directory, key=KEY)
        log.rewrite(OLD)
        log.close()
        system = Stopping()
        log = Log.open(directory, key=KEY, system=system)
        stop_after(system, at)
        with suppress(Stopped):
            log.rewrite(NEW)
        with suppress(StoreError):
            log.close()
        log = Log.open(directory, key=KEY)
        assert log.damaged == []
        assert log.notes == []
        if log.lines == NEW:
            assert log.previous() == OLD, at
        else:
            assert log.lines == OLD, at
            assert log.previous() in (before, OLD), at
        log.rewrite([*log.lines, Line("next", b"")])
        assert log.previous() in (OLD, NEW)
        log.close()
        assert sorted(os.listdir(directory)) == ["lock", LOG, PREVIOUS]
        if not system.stopped:
            break
        at += 1
    assert at >= 9


def stop_after(system: StoppingSystem, more: int) -> None:
    """Let the system die after so many more calls."""
    system._at = system.calls + more  # pyright: ignore[reportPrivateUsage]


def test_a_process_that_dies_anywhere_in_the_first_start_leaves_a_log_or_none(tmp_path: Path) -> None:
    at = 0
    while True:
        directory = tmp_path / str(at) / "gym"
        system = StoppingSystem(at)
        with suppress(Stopped):
            Log.open(directory, key=KEY, system=system).close()
        fill(directory, OLD)
        assert read(directory) == OLD
        if not system.stopped:
            break
        at += 1
    assert at >= 5


@pytest.mark.parametrize("call", ["open", "write", "fsync", "link", "replace"])
def test_a_rewrite_that_fails_leaves_the_log_as_it_was(tmp_path: Path, call: str) -> None:
    rule = fail(call, errno.ENOSPC, times=1)
    ready: list[bool] = []
    system = FailingSystem(lambda name, path: rule(name, path) if ready else 0)
    log = Log.open(tmp_path, key=KEY, system=system)
    for line in OLD:
        log.append(line.label, line.payload)
    ready.append(True)
    if call == "link":  # without links it is copied
        log.rewrite(OLD)
    else:
        with pytest.raises(StoreFull, match="rewriting"):
            log.rewrite(NEW)
    log.append("c", b"4")
    log.close()
    assert read(tmp_path) == [*OLD, Line("c", b"4")]
    assert set(os.listdir(tmp_path)) <= {"lock", LOG, PREVIOUS}


def test_lines_that_raise_leave_the_log_as_it_was(tmp_path: Path) -> None:
    def lines() -> Iterator[Line]:
        yield NEW[0]
        raise KeyError("a bug of the caller")

    log = Log.open(tmp_path, key=KEY)
    log.append("a", b"1")
    with pytest.raises(KeyError):
        log.rewrite(lines())
    log.close()
    assert read(tmp_path) == OLD[:1]


def test_a_name_that_may_be_lost_stops_the_log(tmp_path: Path) -> None:
    fails = [0]

    def rule(call: str, path: str) -> int:
        if call == "replace" and path == LOG:
            fails[0] = errno.EIO
            return 0
        return fails[0] if call == "fsync" else 0

    fill(tmp_path, OLD)
    log = Log.open(tmp_path, key=KEY, system=FailingSystem(rule))
    with pytest.raises(StoreError):
        log.rewrite(NEW)
    with pytest.raises(StoreError, match="takes nothing more"):
        log.append("c", b"4")
    with pytest.raises(StoreError):
        log.close()
    assert read(tmp_path) == NEW


def test_without_hard_links_the_former_is_copied(tmp_path: Path) -> None:
    log = Log.open(tmp_path, key=KEY, system=NoLinks())
    for line in OLD:
        log.append(line.label, line.payload)
    log.rewrite(NEW)
    assert log.previous() == OLD
    log.close()
    assert read(tmp_path) == NEW


def test_a_log_that_is_gone_beside_its_former_generation_is_said(tmp_path: Path) -> None:
    log = Log.open(tmp_path, key=KEY)
    log.rewrite(NEW)
    log.close()
    (tmp_path / LOG).unlink()
    log = Log.open(tmp_path, key=KEY)
    assert log.notes == ["the log was gone; its previous generation is there"]
    log.close()


# Other processes.

WRITER = """
import asyncio, sys
from pathlib import Path
from unbroken.adapters.nemo_gym.log import Log

log = Log.open(Path(sys.argv[1]), key=b"k" * 32)

async def write(name):
    n = 0
    while True:
        await log.durable(log.append(name, b"%d " % n + b"x" * (n * 997 % 90_000)))
        print(name, n, flush=True)
        n += 1

async def main():
    await asyncio.gather(*map(write, "abcd"))

asyncio.run(main())
"""

TEARING = """
import asyncio, os, signal, sys
from pathlib import Path
from unbroken.adapters.nemo_gym.log import Log
from unbroken.store.system import System

class Tearing(System):
    def write(self, descriptor, data):
        if b"torn" in bytes(data):
            os.write(descriptor, memoryview(data)[: int(sys.argv[2])])
            os.kill(os.getpid(), signal.SIGKILL)
        return super().write(descriptor, data)

log = Log.open(Path(sys.argv[1]), key=b"k" * 32, system=Tearing())
asyncio.run(log.durable(log.append("a", b"1")))
log.append("b", b"2" * 100)
log.append("c", b"torn")
"""

HOLDER = """
import sys
from pathlib import Path
from unbroken.adapters.nemo_gym.log import Log

log = Log.open(Path(sys.argv[1]), key=b"k" * 32)
print("open", flush=True)
sys.stdin.read()
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("after", [1, 40, 200])
def test_a_killed_process_has_lost_nothing_that_was_acknowledged(tmp_path: Path, after: int) -> None:
    with start(WRITER, tmp_path) as process:
        assert process.stdout is not None
        said = [process.stdout.readline().split() for _ in range(after)]
        process.kill()
        said += [line.split() for line in process.stdout.read().splitlines()]
    log = Log.open(tmp_path, key=KEY)
    log.close()
    assert log.damaged == []
    found = [(line.label, int(line.payload.split(b" ")[0])) for line in log.lines]
    assert {(name, int(n)) for name, n in (words for words in said if len(words) == 2)} <= set(found)
    for name in "abcd":
        numbers = [n for label, n in found if label == name]
        assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("part", [1, 30, 57])
def test_a_process_killed_in_the_middle_of_a_line_leaves_it_to_be_trimmed(tmp_path: Path, part: int) -> None:
    with start(TEARING, tmp_path, part) as process:
        assert process.wait(60) == -signal.SIGKILL
    log = Log.open(tmp_path, key=KEY)
    log.close()
    assert log.lines == OLD[:2]
    assert log.notes == [f"a torn last line of {part} bytes was trimmed"]


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    with start(HOLDER, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(RunBusy, match=f"in use by process {process.pid}"):
            Log.open(tmp_path, key=KEY)
        process.kill()
    Log.open(tmp_path, key=KEY).close()


def test_the_same_process_is_refused_too(tmp_path: Path) -> None:
    log = Log.open(tmp_path, key=KEY)
    (tmp_path / "link").symlink_to(tmp_path)
    for path in (tmp_path, tmp_path / "link"):
        with pytest.raises(RunBusy, match="open in this process already"):
            Log.open(path, key=KEY)
    with start(HOLDER, tmp_path) as process:
        _, _ = process.communicate("")
    assert process.returncode != 0, "being refused does not loosen the lock"
    log.close()
    Log.open(tmp_path, key=KEY).close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_can_neither_write_nor_take_the_lock_along(tmp_path: Path) -> None:
    log = Log.open(tmp_path, key=KEY)
    asyncio.run(log.durable(log.append("a", b"1")))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            log.append("child", b"")
        except StoreError as error:
            code = 0 if "this is a fork of it" in str(error) else 2
        finally:
            log.close()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with start(HOLDER, tmp_path) as process:
        process.communicate("")
    assert process.returncode != 0
    log.append("b", b"2" * 100)
    log.close()
    assert read(tmp_path) == OLD[:2]
