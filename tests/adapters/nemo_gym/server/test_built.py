"""What a server drew when it was built stays in its log, also in one that was rewritten."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from .tiny import Running, Tiny, running


class Drawing(Tiny):
    def __init__(self, *, name: str = "res", num_workers: int = 1) -> None:
        super().__init__(name=name, num_workers=num_workers)
        self.bonus = random.random()


def _bonus(server: Running) -> float:
    assert isinstance(server.server, Drawing)
    return server.server.bonus


def test_it_is_the_same_at_every_start_also_behind_a_rewritten_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, Drawing) as server:
            drawn = _bonus(server)
        for _ in range(2):
            async with running(tmp_path, Drawing) as server:
                assert _bonus(server) == drawn
                status = await server.told("status")
                assert any(note.startswith("bonus: as its log has it") for note in status.recovery.notes)
                assert status.exclusions == ()
                await server.participant.rewrite()
        async with running(tmp_path / "other", Drawing) as server:  # C: a log that begins anew
            assert _bonus(server) != drawn

    asyncio.run(scenario())


def test_a_log_that_has_no_such_line_begins_with_what_the_server_is_built_with_now(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, Drawing) as server:
            server.participant.built = None
            await server.participant.rewrite()
        async with running(tmp_path, Drawing) as server:
            drawn = _bonus(server)
        async with running(tmp_path, Drawing) as server:
            assert _bonus(server) == drawn

    asyncio.run(scenario())


def test_what_the_user_excludes_is_told_and_lowers_no_promise(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, Drawing, exclude=["bonus"]) as server:
            drawn = _bonus(server)
        async with running(tmp_path, Drawing, exclude=["bonus"]) as server:
            assert _bonus(server) != drawn
            status = await server.told("status")
            assert (status.exclusions, status.capability) == ((), "snapshot")
            assert any(note.startswith("bonus: no state") for note in status.recovery.notes)

    asyncio.run(scenario())
