"""What can be brought back, planned from lines alone."""

from __future__ import annotations

import msgspec

from unbroken.adapters.nemo_gym import records
from unbroken.adapters.nemo_gym.control import Capability
from unbroken.adapters.nemo_gym.frames import Damaged, Line
from unbroken.adapters.nemo_gym.records import (
    Began,
    Encoded,
    Ended,
    Entry,
    Gone,
    SessionRecord,
    Started,
    State,
    Whole,
)  # fmt: skip
from unbroken.adapters.nemo_gym.server.recovery import Comeback, Plan, older, plan_log, plan_records


def _state(name: str) -> Encoded:
    return Encoded(form="json", data=name.encode(), digest=name, seal=b"")


def _call(number: int, revision: int, path: str = "/add", *, attempt: int = 0) -> list[Entry]:
    began = Began(number=number, session="s", rollout="r", attempt=attempt, id=f"c{number}", path=path)
    return [began, Ended(number=number, session="s", status=200, revision=revision, order=number)]


def _lines(*entries: Entry | list[Entry]) -> list[Line]:
    flat = [one for entry in entries for one in (entry if isinstance(entry, list) else [entry])]
    return [Line(getattr(entry, "session", ""), records.encode(entry)) for entry in flat]


def _plan(
    *entries: Entry | list[Entry], damaged: list[Damaged] | None = None, capability: Capability = "snapshot"
) -> Plan:
    return plan_log(_lines(*entries), damaged or [], capability=capability)


def _tried(back: Comeback) -> list[tuple[str, int, list[int]]]:
    return [(trial.tier, trial.revision, [call.revision for call in trial.redo]) for trial in back.trials]


def test_the_newest_state_first_then_older_ones_then_everything() -> None:
    seed, one = (
        State(session="s", revision=1, state=_state("1")),
        State(session="s", revision=3, state=_state("3")),
    )
    plan = _plan(
        _call(1, 1, "/seed_session"), seed, _call(2, 2), _call(3, 3), one, _call(4, 4), _call(5, 5, "/verify")
    )
    (back,) = plan.sessions
    assert _tried(back) == [("newest", 3, [4]), ("older", 1, [2, 3, 4]), ("replayed", 0, [1, 2, 3, 4])]
    assert (plan.number, plan.order, back.record.revision, back.record.rollout) == (5, 5, 5, "r")


def test_a_call_that_cannot_be_read_rules_out_what_needs_it() -> None:
    seed, later = (
        State(session="s", revision=1, state=_state("1")),
        State(session="s", revision=3, state=_state("3")),
    )
    entries: list[Entry | list[Entry]] = [
        _call(1, 1, "/seed_session"),
        seed,
        _call(2, 2)[:1],
        _call(3, 3),
        later,
        _call(4, 4),
    ]
    (back,) = _plan(*entries, damaged=[Damaged("s", "its seal does not fit")]).sessions
    assert _tried(back) == [("older", 3, [4])], "a damaged line may have been a newer state"
    assert back.reasons == [
        "a line of it is damaged: its seal does not fit",
        "the state after call 1 is of no use: call 2 cannot be read",
        "not replayed: call 2 cannot be read",
    ]


def test_a_newest_answer_that_may_be_damaged_is_not_guessed() -> None:
    seed = State(session="s", revision=1, state=_state("1"))
    entries: list[Entry | list[Entry]] = [_call(1, 1, "/seed_session"), seed, _call(2, 2)[:1]]
    for damage in (Damaged("s", "bad"), Damaged("", "bad")):
        (back,) = _plan(*entries, damaged=[damage]).sessions
        assert (back.trials, back.record.status) == ([], "refused")
    plan = _plan(*entries)
    assert _tried(plan.sessions[0]) == [("newest", 1, []), ("replayed", 0, [1])], (
        "without damage it is in doubt only"
    )
    assert [doubt.id for doubt in plan.in_doubt] == ["c2"]


def test_only_the_last_process_leaves_calls_in_doubt() -> None:
    again = Started(lineage="l", server="res", class_name="C", config_hash="", pid=1, mark=7)
    plan = _plan(_call(1, 1, "/seed_session"), _call(2, 2)[:1], again, _call(3, 2), _call(4, 3)[:1])
    assert [doubt.id for doubt in plan.in_doubt] == ["c4"]
    assert (plan.lineage, plan.mark) == ("l", 7)


def test_attempts_are_remembered_even_of_calls_that_did_not_end() -> None:
    plan = _plan(_call(1, 1, "/seed_session"), _call(2, 2, attempt=3)[:1])
    assert plan.sessions[0].record.attempt == 3


def test_a_whole_record_stands_for_what_was_before_it() -> None:
    (first,) = _plan(_call(1, 1, "/seed_session"), _call(2, 2)).sessions
    whole = msgspec.structs.replace(first.record, state=_state("2"), state_revision=2)
    plan = _plan(
        _call(8, 1, "/other"),
        Whole(record=whole),
        _call(9, 3),
        State(session="gone", revision=1, state=_state("x")),
        Gone(session="gone"),
    )
    (back,) = plan.sessions
    assert _tried(back) == [("newest", 2, [3]), ("replayed", 0, [1, 2, 3])]
    assert [call.path for call in back.record.calls] == ["/seed_session", "/add", "/add"]


def test_a_state_of_an_earlier_generation_counts_only_in_the_same_history() -> None:
    then = _lines(
        _call(1, 1, "/seed_session"), State(session="s", revision=1, state=_state("1")), _call(2, 2)
    )
    (same,) = _plan(_call(1, 1, "/seed_session"), _call(2, 2)).sessions
    assert [(t.tier, t.revision, [c.revision for c in t.redo]) for t in older(same, then)] == [
        ("older", 1, [2])
    ]
    (other,) = _plan(_call(7, 1, "/seed_session"), _call(8, 2)).sessions
    assert older(other, then) == []


def test_what_each_kind_of_server_can_do() -> None:
    entries = [_call(1, 1, "/seed_session"), _call(2, 2)]
    verified = [*entries, _call(3, 3, "/verify")]
    for capability, open_one, over in (
        ("replay", "open", "retired"),  # not executed again for nobody
        ("restart_only", "refused", "retired"),
        ("drain_only", "refused", "retired"),
        ("stateless", "retired", "retired"),
    ):
        (back,) = _plan(*entries, capability=capability).sessions  # type: ignore[arg-type]
        assert back.record.status == open_one
        (back,) = _plan(*verified, capability=capability).sessions  # type: ignore[arg-type]
        assert (back.record.status, back.trials) == (over, [])


def test_lines_that_are_none_are_named() -> None:
    plan = plan_log([Line("s", b"\xc1"), Line("", b"")], [Damaged("nobody", "bad")], capability="snapshot")
    assert len(plan.notes) == 3
    assert plan.sessions == []


def test_records_of_a_checkpoint() -> None:
    (found,) = _plan(_call(1, 1, "/seed_session"), _call(2, 2)).sessions
    record = msgspec.structs.replace(found.record, state=_state("1"), state_revision=1)
    lost = SessionRecord(id="lost", status="refused", reason="so")
    back, refused = plan_records([record, lost], capability="snapshot")
    assert _tried(back) == [("newest", 1, [2]), ("replayed", 0, [1, 2])]
    assert (refused.trials, refused.record.status, refused.record.reason) == ([], "refused", "so")
