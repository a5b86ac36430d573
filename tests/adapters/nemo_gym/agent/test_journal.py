"""An agent's log from one process to the next: what is kept, what is lost with a damaged line, what an export gives."""

from __future__ import annotations

import asyncio
import base64
import itertools
from pathlib import Path

import pytest

from tests.adapters.nemo_gym.agent.toys import IDENTITY, KEY
from unbroken.adapters.nemo_gym import records
from unbroken.adapters.nemo_gym.agent import journal as journal_module
from unbroken.adapters.nemo_gym.agent.folding import fold
from unbroken.adapters.nemo_gym.agent.journal import Journal
from unbroken.adapters.nemo_gym.frames import Line
from unbroken.adapters.nemo_gym.media import Media
from unbroken.adapters.nemo_gym.records import (
    Answer,
    Asked,
    Began,
    Dropped,
    Finished,
    RolloutRecord,
    WholeRollout,
)
from unbroken.errors import RunBusy


def opened(directory: Path, *, at: float = 1000.0) -> Journal:
    return Journal.open(
        directory, key=KEY, identity=IDENTITY, clock=lambda: at, draw=lambda: f"i{next(DRAWN)}"
    )


DRAWN = itertools.count()


def told(key: str, result: bytes = b"{}", **other: object) -> Answer:
    return Answer(key=key, scope="/run", server="res", path="/tool", status=200, result=result, **other)  # type: ignore[arg-type]


def image(fill: int) -> bytes:
    return b'{"image": "data:image/png;base64,' + base64.b64encode(bytes([fill]) * 6000) + b'"}'


def test_what_was_kept_is_there_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = opened(tmp_path)
        first.dispatch("a", attempt=1, body=b'{"x": 1}', stamped=True)
        first.asked(Asked(rollout="a", key="k/1", server="res", path="/tool"))
        await first.answered("a", told("k/1", b'{"big":   1}', cookies=("s=1; Path=/",)))
        first.asked(Asked(rollout="a", key="k/2", server="model", path="/v1/responses", model=True))
        first.dispatch("b", attempt=0, body=b"{}", stamped=False)
        await first.finish("b", status=200, result=b'{"reward": 1}')
        first.dispatch("c", attempt=0, body=b"{}", stamped=True)
        first.forget(["c"])
        assert await first.adopt("run") == 1
        with pytest.raises(RunBusy):
            opened(tmp_path)
        before = (first.lineage, first.mark, first.digest("a"))
        incarnation = first.records["a"].incarnation
        first.close()

        again = opened(tmp_path)
        assert set(again.records) == {"a", "b"}
        assert again.records["a"] == RolloutRecord(
            id="a",
            attempt=1,
            body=b'{"x": 1}',
            incarnation=incarnation,
            answers=[told("k/1", b'{"big":   1}', cookies=("s=1; Path=/",))],
        )
        assert again.records["b"].status == 200
        assert not again.records["b"].stamped
        assert again.answer("a", "k/1") == told("k/1", b'{"big":   1}', cookies=("s=1; Path=/",))
        assert again.answer("a", "k/2") is None
        assert (again.lineage, again.digest("a")) == (before[0], before[2])
        assert again.mark > before[1]
        assert again.epoch == 1
        assert again.recovery.source == "log"
        assert again.recovery.rollouts == 2
        assert [(call.rollout, call.server, call.id) for call in again.recovery.in_doubt] == [
            ("a", "model", f"a.{incarnation}@agent#k/2")
        ]
        again.close()

    asyncio.run(scenario())


def test_a_torn_last_line_is_trimmed_and_said(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = opened(tmp_path)
        first.dispatch("a", attempt=0, body=b"{}", stamped=True)
        await first.answered("a", told("k/1"))
        await first.answered("a", told("k/2"))
        first.close()
        log = tmp_path / "log"
        log.write_bytes(log.read_bytes()[:-7])
        again = opened(tmp_path)
        assert [answer.key for answer in again.records["a"].answers] == ["k/1"]
        assert any("torn" in note for note in again.recovery.notes)
        again.close()

    asyncio.run(scenario())


def test_a_damaged_line_lets_its_rollout_begin_anew_and_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = opened(tmp_path)
        for rollout in ("a", "b"):
            first.dispatch(rollout, attempt=0, body=b"{}", stamped=True)
            await first.answered(rollout, told("k/1", rollout.encode() * 40))
            await first.answered(rollout, told("k/2"))
        names = {rollout: record.incarnation for rollout, record in first.records.items()}
        first.close()
        log = tmp_path / "log"
        content = log.read_bytes()
        log.write_bytes(content.replace(b"a" * 40, b"a" * 39 + b"?"))
        again = opened(tmp_path)
        assert not again.records["a"].answers
        assert again.records["a"].incarnation != names["a"]
        assert again.records["b"].incarnation == names["b"]
        assert [answer.key for answer in again.records["b"].answers] == ["k/1", "k/2"]
        assert [(r.id, r.tier) for r in again.recovery.listed] == [("a", "fresh")]
        again.close()

    asyncio.run(scenario())


def test_an_export_gives_what_has_changed_and_images_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = opened(tmp_path)
        journal.dispatch("a", attempt=0, body=image(1), stamped=True)
        await journal.answered("a", told("k/1", image(2)))
        journal.dispatch("b", attempt=0, body=b"{}", stamped=True)
        first = journal.export("", 0)
        assert first.complete
        assert {record.key for record in first.records} == {"a", "b"}
        assert len(first.media) == 2
        assert image(1) not in b"".join(record.data for record in first.records)
        nothing = journal.export(first.lineage, first.mark)
        assert (nothing.complete, nothing.records, nothing.media) == (False, [], {})

        await journal.answered("a", told("k/2", image(3)))
        journal.forget(["b"])
        second = journal.export(first.lineage, first.mark)
        assert {record.key: bool(record.data) for record in second.records} == {"a": True, "b": False}
        assert len(second.media) == 1
        journal.forget(["a"])
        journal.dispatch(
            "c", attempt=0, body=image(1), stamped=True
        )  # who carries records may have let it go
        assert len(journal.export(second.lineage, second.mark).media) == 1
        journal.close()

        again = opened(tmp_path)
        assert again.export(second.lineage, second.mark).complete
        assert again.export(second.lineage, again.mark + 1).complete
        assert again.export("another", again.mark).complete
        assert not again.export(second.lineage, again.mark).complete
        assert again.records["c"].body != image(1)
        again.close()

    asyncio.run(scenario())


def test_marks_grow_even_if_the_clock_goes_back(tmp_path: Path) -> None:
    """By however much, and whatever was counted meanwhile: a mark of one process never means a thing to another."""
    mark = 0
    for at in (5000.0, 10.0, 5000.002, -7.0):
        journal = opened(tmp_path, at=at)
        assert journal.first_mark > mark
        since = journal.export(journal.lineage, mark)
        assert since.complete
        assert len(since.records) == (1 if mark else 0)
        for attempt in range(3000):
            journal.dispatch("a", attempt=attempt, body=b"{}", stamped=True)
        mark = journal.mark
        journal.close()


def test_an_older_copy_of_a_log_does_not_count_what_the_newer_one_has_counted(tmp_path: Path) -> None:
    opened(tmp_path).close()
    copy = (tmp_path / "log").read_bytes()
    journal = opened(tmp_path, at=2000.0)
    journal.dispatch("a", attempt=0, body=b"{}", stamped=True)
    given = journal.export("", 0)
    journal.close()
    (tmp_path / "log").write_bytes(copy)
    again = opened(tmp_path, at=3000.0)
    assert again.lineage == given.lineage
    for attempt in range(1000):
        again.dispatch("a", attempt=attempt, body=b"{}", stamped=True)
    assert not again.first_mark <= given.mark <= again.mark
    again.close()


def test_records_of_a_checkpoint_take_the_place_of_all(tmp_path: Path) -> None:
    async def scenario() -> None:
        source = opened(tmp_path / "source")
        source.dispatch("a", attempt=2, body=b"{}", stamped=True)
        await source.answered("a", told("k/1", image(4)))
        exported = source.export("", 0)
        source.close()

        target = opened(tmp_path / "target")
        target.dispatch("z", attempt=0, body=b"{}", stamped=True)
        mark = target.mark
        lineage = target.lineage
        target.replace([records.rollout(record.data) for record in exported.records], exported.media)
        assert target.lineage != lineage  # who knows the former log must not take this one for it
        changed = target.export(lineage, mark)
        assert (changed.complete, [record.key for record in changed.records]) == (True, ["a"])
        assert len(changed.media) == 1
        assert target.export(changed.lineage, changed.mark).records == []
        target.close()
        again = opened(tmp_path / "target")
        assert set(again.records) == {"a"}
        answer = again.answer("a", "k/1")
        assert answer is not None
        assert answer.result == image(4)
        again.close()

    asyncio.run(scenario())


def test_a_log_that_is_mostly_about_what_is_gone_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(journal_module, "_COMPACT_FROM", 1000)
        journal = opened(tmp_path)
        for rollout in ("a", "b"):
            journal.dispatch(rollout, attempt=0, body=b"{}", stamped=True)
            journal.asked(Asked(rollout=rollout, key="k/2", server="res", path="/tool"))
            await journal.answered(
                rollout, told("k/1", rollout.encode() * (9000 if rollout == "a" else 3000))
            )
        size = journal._log.size
        await journal.committed(journal.mark)
        assert journal._log.size >= size
        size = journal._log.size
        await journal.adopt("run")
        await journal.answered("b", told("k/3"))
        journal.forget(["a"])
        await journal.committed(journal.mark)
        assert journal._log.size < size
        await journal.answered("b", told("k/4"))
        before = (journal.digest("b"), journal.lineage)
        journal.close()
        again = opened(tmp_path)
        assert set(again.records) == {"b"}
        assert (again.digest("b"), again.lineage) == before
        assert again.epoch == 1
        assert [call.rollout for call in again.recovery.in_doubt] == ["b"]
        again.close()

    asyncio.run(scenario())


def test_a_log_of_rollouts_that_nobody_drops_does_not_grow_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(journal_module, "_COMPACT_FROM", 1000)
        journal = opened(tmp_path)
        journal.dispatch("0-0-x", attempt=0, body=b"{}", stamped=False)
        await journal.answered("0-0-x", told("k/1", bytes(3000)))
        await journal.finish("0-0-x", status=200, result=b"1")
        assert not journal.records["0-0-x"].answers
        incarnation = journal.records["0-0-x"].incarnation
        size = journal._log.size
        journal.close()
        again = opened(tmp_path)
        assert again.records["0-0-x"] == RolloutRecord(
            id="0-0-x", body=b"{}", status=200, result=b"1", stamped=False, incarnation=incarnation
        )
        assert again._log.size < size / 2
        again.close()

    asyncio.run(scenario())


def test_marks_that_a_trainer_has_called_durable_are_known_over_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        journal = opened(tmp_path)
        assert (journal.committed_mark, journal.recovered_mark, journal.first_mark) == (0, 0, journal.mark)
        journal.dispatch("a", attempt=0, body=b"{}", stamped=True)
        exported = journal.export("", 0)
        await journal.committed(exported.mark)
        await journal.committed(exported.mark - 1)  # an older one says nothing new
        await journal.committed(exported.mark + 1)  # of another log
        assert journal.committed_mark == exported.mark
        journal.dispatch("b", attempt=0, body=b"{}", stamped=True)
        last = journal.export(exported.lineage, exported.mark).mark
        journal.close()

        again = opened(tmp_path, at=2000.0)
        assert (again.committed_mark, again.recovered_mark) == (exported.mark, last)
        assert again.first_mark > last
        monkeypatch.setattr(journal_module, "_COMPACT_FROM", 0)
        again.forget(["a", "b"])
        committed = again.export("", 0).mark
        await again.committed(committed)
        again.close()
        compacted = opened(tmp_path, at=3000.0)
        assert (compacted.committed_mark, compacted.recovered_mark) == (committed, committed)
        compacted.replace([], {})
        assert (compacted.committed_mark, compacted.recovered_mark) == (0, 0)  # of the former log
        compacted.close()

    asyncio.run(scenario())


def test_a_log_that_has_lost_its_end_has_not_the_mark_that_was_given(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = opened(tmp_path)
        journal.dispatch("a", attempt=0, body=b"{}", stamped=True)
        before = journal.export("", 0)
        length = (tmp_path / "log").stat().st_size
        await journal.answered("a", told("k/1"))
        lost = journal.export(before.lineage, before.mark)
        journal.close()
        log = tmp_path / "log"
        log.write_bytes(log.read_bytes()[:length])
        again = opened(tmp_path, at=2000.0)
        assert again.lineage == lost.lineage
        assert again.recovered_mark == before.mark < lost.mark < again.first_mark
        again.close()

    asyncio.run(scenario())


def test_what_was_dropped_is_forgotten_once_a_checkpoint_is_durable(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = opened(tmp_path)
        for number in range(50):
            journal.dispatch(f"r{number}", attempt=0, body=b"{}", stamped=True)
        first = journal.export("", 0)
        journal.forget([f"r{number}" for number in range(49)])
        second = journal.export(first.lineage, first.mark)
        assert len(second.records) == 49
        await journal.committed(second.mark)
        assert len(journal._changes) == 1
        assert journal.export(second.lineage, second.mark).records == []
        old = journal.export(first.lineage, first.mark)  # what it has missed cannot be told any more
        assert (old.complete, [record.key for record in old.records]) == (True, ["r49"])
        journal.close()

    asyncio.run(scenario())


def test_an_image_that_a_rollout_names_again_is_given_again(tmp_path: Path) -> None:
    """Who carries the records has let it go when no record named it."""

    async def scenario() -> None:
        journal = opened(tmp_path)
        journal.dispatch("a", attempt=0, body=b"{}", stamped=True)
        await journal.answered("a", told("k/1", image(1)))
        first = journal.export("", 0)
        journal.begin_anew("a")
        second = journal.export(first.lineage, first.mark)
        assert second.media == {}
        await journal.answered("a", told("k/1", image(1)))
        third = journal.export(second.lineage, second.mark)
        assert third.media == first.media
        await journal.ask_again("a", lambda _: False)
        fourth = journal.export(third.lineage, third.mark)
        await journal.answered("a", told("k/2", image(1)))
        assert journal.export(fourth.lineage, fourth.mark).media == first.media
        journal.close()

    asyncio.run(scenario())


def test_a_damaged_image_costs_its_rollout_and_no_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = opened(tmp_path)
        for number, rollout in enumerate(("a", "b")):
            journal.dispatch(rollout, attempt=0, body=b"{}", stamped=True)
            await journal.answered(rollout, told("k/1", image(number)))
        (digest,) = Media.named(journal.records["a"].answers[0].result)
        (blob,) = [path for path in (tmp_path / "media").rglob("*") if path.is_file() and digest in str(path)]
        blob.write_bytes(b"rot")
        incarnation = journal.records["a"].incarnation
        lost: list[tuple[str, str]] = []
        exported = journal.export("", 0, lost=lambda rollout, why: lost.append((rollout, why)))
        given = {record.key: records.rollout(record.data) for record in exported.records}
        assert [rollout for rollout, _ in lost] == ["a"]
        assert "damaged" in lost[0][1]
        assert not given["a"].answers
        assert given["a"].incarnation != incarnation
        assert [answer.key for answer in given["b"].answers] == ["k/1"]
        assert len(exported.media) == 1
        journal.close()

    asyncio.run(scenario())


def test_digests_follow_what_a_rollout_was_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = opened(tmp_path)
        seen: list[str] = []

        def look() -> None:
            seen.append(journal.digest("a"))
            assert journal.digest("a") == seen[-1]

        journal.dispatch("a", attempt=0, body=b"{}", stamped=True)
        look()
        await journal.answered("a", told("k/1"))
        look()
        await journal.finish("a", status=200, result=b"1")
        look()
        journal.begin_anew("a")
        look()
        assert seen[3] == seen[0]
        assert len(set(seen)) == 3
        journal.close()

    asyncio.run(scenario())


def test_a_log_that_cannot_be_taken_up_is_given_back(tmp_path: Path) -> None:
    def broken() -> float:
        raise LookupError("no clock")

    with pytest.raises(LookupError):
        Journal.open(tmp_path, key=KEY, identity=IDENTITY, clock=broken)
    opened(tmp_path).close()


def test_folding_is_not_disturbed_by_lines_that_are_none() -> None:
    foreign = records.encode(Began(number=1, session="s", path="/tool"))
    lines = [
        Line("r", records.encode(Finished(rollout="r", status=200, result=b"1"))),
        Line("r", b"\xc1"),
        Line("s", foreign),
        Line("q", records.encode(WholeRollout(record=RolloutRecord(id="q", answers=[told("k")])))),
        Line("q", records.encode(Dropped(rollout="q"))),
        Line("q", records.encode(Asked(rollout="q", key="k", server="res", path="/tool"))),
    ]
    folded = fold(lines)
    assert folded.rollouts == {
        "r": RolloutRecord(id="r", status=200, result=b"1"),
        "q": RolloutRecord(id="q"),
    }
    assert {rollout: list(calls) for rollout, calls in folded.asked.items()} == {"q": ["k"]}
    assert len(folded.unreadable) == 2
    assert folded.unreadable[0][0] == "r"
