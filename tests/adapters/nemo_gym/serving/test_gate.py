"""A gate under several who drain and open it at once."""

from __future__ import annotations

import asyncio

import pytest

from unbroken.adapters.nemo_gym.control import InFlight, Refuses
from unbroken.adapters.nemo_gym.serving.gate import Gate


class Visitor:
    """A call that is inside until it is let go."""

    def __init__(self, gate: Gate, path: str = "/step") -> None:
        self._gate = gate
        self._path = path
        self.inside = asyncio.Event()
        self.leave = asyncio.Event()
        self.task = asyncio.create_task(self._pass())

    async def _pass(self) -> None:
        async with self._gate.passing(InFlight(path=self._path)):
            self.inside.set()
            await self.leave.wait()


async def _settled() -> None:
    """Let every task that can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_of_two_drains_the_first_does_not_open_for_the_second() -> None:
    async def scenario() -> None:
        gate = Gate()
        first = Visitor(gate)
        await first.inside.wait()
        early = asyncio.create_task(gate.drain(0.01))
        await _settled()
        late = asyncio.create_task(gate.drain(60))
        with pytest.raises(Refuses, match="still under way"):
            await early
        assert not gate.is_open, "the second still waits"
        first.leave.set()
        await late
        second = Visitor(gate)
        await _settled()
        assert (gate.is_open, gate.in_flight()) == (False, ())
        gate.open()
        await second.inside.wait()
        second.leave.set()
        await asyncio.gather(first.task, second.task)

    asyncio.run(scenario())


def test_the_newest_of_two_drains_that_fail_opens_again() -> None:
    async def scenario() -> None:
        gate = Gate()
        visitor = Visitor(gate)
        await visitor.inside.wait()
        early = asyncio.create_task(gate.drain(0.01))
        await _settled()
        late = asyncio.create_task(gate.drain(0.02))
        for drain in (early, late):
            with pytest.raises(Refuses):
                await drain
        assert gate.is_open, "as it was before both"
        visitor.leave.set()
        await visitor.task

    asyncio.run(scenario())


def test_the_older_of_two_drains_does_not_succeed_for_the_newer() -> None:
    async def scenario() -> None:
        gate = Gate()
        visitor = Visitor(gate)
        await visitor.inside.wait()
        early, late = (asyncio.create_task(gate.drain(60)) for _ in range(2))
        await _settled()
        visitor.leave.set()
        with pytest.raises(Refuses, match="another"):
            await early
        await late
        assert not gate.is_open

    asyncio.run(scenario())


def test_a_drain_during_which_the_gate_is_opened_fails() -> None:
    async def scenario() -> None:
        gate = Gate()
        visitor = Visitor(gate)
        await visitor.inside.wait()
        drain = asyncio.create_task(gate.drain(60))
        await _settled()
        gate.open()
        visitor.leave.set()
        with pytest.raises(Refuses, match="was opened"):
            await drain
        assert gate.is_open

    asyncio.run(scenario())


@pytest.mark.parametrize("opened", [True, False])
def test_ending_drains_leaves_the_gate_as_it_was(*, opened: bool) -> None:
    async def scenario() -> None:
        gate = Gate()
        visitor = Visitor(gate)
        await visitor.inside.wait()
        if not opened:
            gate.close()
        drain = asyncio.create_task(gate.drain(60))
        await _settled()
        gate.end_drains()
        visitor.leave.set()
        with pytest.raises(Refuses):
            await drain
        assert gate.is_open == opened

    asyncio.run(scenario())


def test_a_drain_whose_task_is_cancelled_opens_again() -> None:
    async def scenario() -> None:
        gate = Gate()
        visitor = Visitor(gate)
        await visitor.inside.wait()
        drain = asyncio.create_task(gate.drain(60))
        await _settled()
        drain.cancel()
        with pytest.raises(asyncio.CancelledError):
            await drain
        assert gate.is_open
        visitor.leave.set()
        await visitor.task

    asyncio.run(scenario())


def test_an_empty_gate_is_drained_at_once() -> None:
    async def scenario() -> None:
        gate = Gate()
        await gate.drain(0)
        assert not gate.is_open

    asyncio.run(scenario())
