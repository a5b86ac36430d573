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
from contextlib import suppress
from pathlib import Path

import pytest

from unbroken.adapters.nemo_gym.log import LOG, PREVIOUS, Damaged, Line, Log
from unbroken.errors import ConfigError, CorruptObject, RunBusy, StoreError, StoreFull, Untrusted
from unbroken.format.buffers import Buffer
from unbroken.store.system import System
from unbroken.testing.faulty_system import (
    FailingSystem,
    RecordingSystem,
    ShortCalls,
    os_error,
)

from .logs import KEY, NEW, OLD, CountingSystem, fill, read


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
