"""What is dropped stays away, whatever happens at the same time; and what trainers were given is known over restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from unbroken.adapters.nemo_gym import records
from unbroken.adapters.nemo_gym.control import Committed, Drop, Export, Exported, Quiesce
from unbroken.adapters.nemo_gym.keys import log_key
from unbroken.adapters.nemo_gym.log import Line, Log
from unbroken.adapters.nemo_gym.records import SessionRecord, State
from unbroken.adapters.nemo_gym.server.book import Book
from unbroken.errors import InternalError

from .tiny import running

ROLLOUTS = [f"r{number}" for number in range(40)]


@pytest.mark.parametrize("since", [False, True])
def test_a_drop_during_an_export_waits_for_it(tmp_path: Path, *, since: bool) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            await server.adopted()
            asked = Export()
            for rollout in ROLLOUTS:
                cookie = (await server.post("/seed_session", {"start": 3}, rollout=rollout, call="1")).cookie
                if rollout == "r0" and since:
                    before = await server.cut()
                    asked = Export(lineage=before.lineage, mark=before.mark)
                await server.post("/add", {"count": 1}, cookie=cookie, rollout=rollout, call="2")
            await server.told("quiesce", Quiesce(timeout=300))
            exporting = asyncio.create_task(server.told("export", asked))
            await asyncio.sleep(0)
            dropping = asyncio.create_task(server.told("drop", Drop(rollouts=ROLLOUTS)))
            exported = await exporting
            assert isinstance(exported, Exported)
            assert len(exported.records) == len(ROLLOUTS)
            await dropping
            gone = await server.told("export", Export(lineage=exported.lineage, mark=exported.mark))
            assert {record.key for record in gone.records} == {record.key for record in exported.records}
            assert all(not record.data for record in gone.records)
            assert len(server.participant.book) == 0
        async with running(tmp_path) as server:
            assert len(server.participant.book) == 0, "they stay away"

    asyncio.run(scenario())


def test_a_state_behind_the_end_of_its_session_brings_nothing_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            await server.adopted()
            await server.post("/seed_session", {"start": 3}, rollout="a", call="1")
            (record,) = server.participant.book
            state = record.state
            assert state is not None
            await server.told("drop", Drop(rollouts=["a"]))
            assert server.participant.save_state(record) == 0
        log = Log.open(tmp_path, key=log_key())
        late = State(session=record.id, revision=1, state=state)  # as earlier versions could write it
        log.rewrite([*log.lines, Line(record.id, records.encode(late))])
        log.close()
        async with running(tmp_path) as server:
            assert len(server.participant.book) == 0

    asyncio.run(scenario())


def test_a_book_takes_no_state_of_a_session_that_it_does_not_have() -> None:
    book = Book.beginning(after=0)
    record = SessionRecord(id="s")
    book.put(record)
    mark = book.mark
    book.remove("s")
    with pytest.raises(InternalError):
        book.set_state(record, None)
    assert book.changes(mark).gone == ("s",)


def test_nothing_is_left_of_sessions_that_were_dropped(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            await server.adopted()
            for rollout in ROLLOUTS:
                await server.post("/seed_session", {"start": 3}, rollout=rollout, call="1")
                await server.post("/value", cookie="nobody's", rollout=rollout, call="2")
            await server.told("drop", Drop(rollouts=ROLLOUTS))
            assert server.participant._turns == {}
            assert len(server.participant.book) == 0

    asyncio.run(scenario())


def test_what_a_trainer_called_durable_is_known_after_restarts(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            await server.adopted()
            await server.post("/seed_session", {}, rollout="a", call="1")
            first = await server.cut()
            await server.told("committed", Committed(mark=first.mark))
            await server.post("/seed_session", {}, rollout="b", call="1")
            second = await server.cut()
            assert (await server.told("status")).committed == first.mark
        for _ in range(2):
            async with running(tmp_path) as server:
                status = await (await server.adopted()).told("status")
                assert (status.committed, status.recovered_mark) == (first.mark, second.mark)
                assert status.first_mark > second.mark
                await server.told("committed", Committed(mark=status.mark + 1))
                assert (await server.told("status")).committed == first.mark, "no mark of this server"
                await server.participant.rewrite()

    asyncio.run(scenario())


def test_a_log_that_lost_its_end_does_not_say_that_it_has_what_was_given(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as server:
            await server.adopted()
            cookie = (await server.post("/seed_session", {}, rollout="a", call="1")).cookie
            first = await server.cut()
            size = (tmp_path / "log").stat().st_size
            await server.post("/add", {"count": 1}, cookie=cookie)
            second = await server.cut()
        with (tmp_path / "log").open("r+b") as file:
            file.truncate(size)
        async with running(tmp_path) as server:
            status = await server.told("status")
            assert status.recovered_mark == first.mark
            assert status.recovered_mark < second.mark < status.first_mark

    asyncio.run(scenario())
