"""A log that is written anew: nothing is lost, wherever it stops."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from unbroken.adapters.nemo_gym.log import LOG, PREVIOUS, Damaged, Line, Log
from unbroken.errors import ConfigError, StoreError, StoreFull
from unbroken.store.system import System
from unbroken.testing.faulty_store import Stopped
from unbroken.testing.faulty_system import (
    FailingSystem,
    NoLinks,
    RecordingSystem,
    StoppingSystem,
    fail,
    os_error,
)

from .logs import KEY, NEW, OLD, CountingSystem, fill, read


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


@pytest.mark.parametrize("call", ["create", "write", "fsync", "link", "replace"])
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
