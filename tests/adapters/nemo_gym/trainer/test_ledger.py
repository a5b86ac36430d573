"""The ledger of rollouts: ids, attempts, what is handed out once, and what a restart finds."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from unbroken.adapters.nemo_gym.trainer.ledger import Ledger, Owner
from unbroken.errors import ConfigError, CorruptObject, InternalError


def begun(count: int = 3, *, owner: Owner = "submit") -> tuple[Ledger, list[str]]:
    ledger = Ledger()
    ids = ledger.add([{"prompt": i} for i in range(count)], ["agent"] * count, owner=owner)
    for rollout in ids:
        ledger.dispatch(rollout)
    return ledger, ids


def complete(ledger: Ledger, rollout: str, attempt: int = 0, reward: float = 1.0) -> bool:
    return ledger.complete(rollout, attempt, reward=reward, response=b'{"reward": 1.0}')


def again(ledger: Ledger) -> Ledger:
    return Ledger.decode(ledger.encode())


def test_ids_name_round_and_index_and_go_on_after_a_restart() -> None:
    ledger, ids = begun(2)
    assert ids == ["0-0", "0-1"]
    assert ledger.add([{}], ["agent"]) == ["1-0"]
    assert again(ledger).add([{}], ["agent"]) == ["2-0"]


def test_what_is_sent_is_stamped() -> None:
    ledger = Ledger()
    (rollout,) = ledger.add([{"prompt": 7}], ["agent"], policy_version="v3")
    entry, body = ledger.dispatch(rollout)
    assert entry.agent == "agent"
    assert json.loads(body) == {
        "prompt": 7, "_ng_task_index": 0, "_ng_rollout_index": 0, "_ng_rollout_id": "0-0",
        "_ng_attempt_index": 0, "_unbroken_policy_version": "v3",
    }  # fmt: skip


def test_a_row_that_is_no_json_adds_nothing() -> None:
    ledger = Ledger()
    with pytest.raises(ConfigError, match="Row 1 cannot be sent"):
        ledger.add([{"a": 1}, {"a": object()}], ["agent", "agent"])
    with pytest.raises(ConfigError, match="Row 0 cannot be sent"):
        ledger.add([{"a": float("nan")}], ["agent"])
    assert ledger.open() == []
    assert ledger.add([{}], ["agent"]) == ["0-0"]


def test_a_late_result_of_an_older_attempt_is_refused() -> None:
    """G13: after the restart attempt 1 is under way, and what attempt 0 brings comes too late."""
    ledger, ids = begun(4)
    for rollout in ids[:3]:
        assert complete(ledger, rollout)
    restarted = again(ledger)
    assert restarted.resume() == [ids[3]]
    restarted.dispatch(ids[3])
    assert not complete(restarted, ids[3], attempt=0, reward=9.0)
    assert complete(restarted, ids[3], attempt=1, reward=2.0)
    assert [r.reward for r in restarted.hand_out(restarted.finished("submit"))] == [1.0, 1.0, 1.0, 2.0]


def test_a_result_counts_once() -> None:
    ledger, ids = begun(1)
    assert complete(ledger, ids[0])
    assert not complete(ledger, ids[0], reward=5.0)
    assert [r.reward for r in ledger.hand_out(ids)] == [1.0]
    with pytest.raises(InternalError, match="handed"):
        ledger.hand_out(ids)


def test_what_was_handed_out_is_consumed_from_the_next_capture_on() -> None:
    ledger, ids = begun(2)
    complete(ledger, ids[0])
    before = again(ledger)
    ledger.hand_out([ids[0]])
    assert ledger.rollouts_to_drop() == []
    after = again(ledger)
    assert before.ids() == ids
    assert before.finished("submit") == [ids[0]]
    assert after.ids() == [ids[1]]
    assert ledger.rollouts_to_drop() == [ids[0]]
    ledger.dropped([ids[0]])
    assert ledger.rollouts_to_drop() == []


def test_what_is_handed_out_after_a_capture_is_not_dropped_by_its_commit() -> None:
    ledger, ids = begun(2)
    complete(ledger, ids[0])
    complete(ledger, ids[1])
    ledger.hand_out([ids[0]])
    ledger.encode()
    ledger.hand_out([ids[1]])
    assert ledger.rollouts_to_drop() == [ids[0]]


def test_what_the_servers_have_not_heard_of_before_a_restart_they_hear_after_it() -> None:
    ledger, ids = begun(2)
    complete(ledger, ids[0])
    ledger.hand_out([ids[0]])
    restarted = again(ledger)
    assert restarted.ids() == [ids[1]]
    assert restarted.rollouts_to_drop() == [], "not before it is durable that this process has them behind it"
    restarted.encode()
    assert restarted.rollouts_to_drop() == [ids[0]]


def test_in_another_timeline_no_id_is_given_that_was_given_before() -> None:
    ledger, _ = begun(1)
    saved = ledger.encode()
    abandoned = ledger.add([{}], ["agent"])
    back = Ledger.decode(saved)
    back.leave("a1b2c3")
    assert back.add([{}], ["agent"]) == ["a1b2c3.1-0"]
    assert abandoned == ["1-0"]
    assert again(back).add([{}], ["agent"]) == ["a1b2c3.2-0"]
    assert back.ids() == ["0-0", "a1b2c3.1-0"]


def test_failures_have_no_reward_and_stay_apart() -> None:
    """H1: completed, failed and unresolved are three outcomes, also after a restart."""
    ledger, ids = begun(3)
    complete(ledger, ids[0], reward=0.0)
    ledger.fail(ids[1], 0, outcome="failed", error="HTTP 500")
    ledger.fail(ids[2], 0, outcome="unresolved", error="nobody answered")
    found = again(ledger).hand_out(ids)
    assert [(r.outcome, r.reward) for r in found] == [
        ("completed", 0.0), ("failed", None), ("unresolved", None),
    ]  # fmt: skip


def test_a_reward_that_is_no_number_is_a_bug() -> None:
    ledger, ids = begun(1)
    with pytest.raises(InternalError):
        complete(ledger, ids[0], reward=float("nan"))


def test_what_was_given_up_is_refused_and_dropped() -> None:
    ledger, ids = begun(2)
    ledger.give_up(ids)
    assert not complete(ledger, ids[0])
    ledger.encode()
    assert ledger.rollouts_to_drop() == ids


def test_what_is_no_ledger_is_said() -> None:
    with pytest.raises(CorruptObject, match="ledger"):
        Ledger.decode(b"no msgpack")
    with pytest.raises(CorruptObject, match="version 9"):
        Ledger.decode(msgspec.msgpack.encode({"version": 9, "round": 0, "finished": 0, "entries": []}))


class Rollouts(RuleBasedStateMachine):
    """Any order of sending, finishing, handing out, saving and being killed; a model says what must have been trained."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.saved = (self.ledger.encode(), list[str]())
        self.trained: list[str] = []
        self.made = 0

    @rule(count=st.integers(1, 3))
    def submit(self, count: int) -> None:
        ids = self.ledger.add([{}] * count, ["agent"] * count)
        for rollout in ids:
            self.ledger.dispatch(rollout)

    @precondition(lambda self: self.ledger.open())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        rollout = data.draw(st.sampled_from(self.ledger.open()))
        entry, _ = self.ledger.dispatch(rollout)
        assert not complete(self.ledger, rollout, attempt=entry.attempt + 1)
        assert entry.attempt == 0 or not complete(self.ledger, rollout, attempt=entry.attempt - 1)
        assert complete(self.ledger, rollout, attempt=entry.attempt)

    @rule(count=st.integers(1, 3))
    def train(self, count: int) -> None:
        self.trained += [r.id for r in self.ledger.hand_out(self.ledger.finished("submit")[:count])]

    @rule()
    def save(self) -> None:
        self.saved = (self.ledger.encode(), list(self.trained))

    @rule()
    def kill(self) -> None:
        encoded, self.trained = self.saved[0], list(self.saved[1])
        self.ledger = Ledger.decode(encoded)
        self.ledger.resume()

    @invariant()
    def every_rollout_is_trained_on_at_most_once_and_none_is_lost(self) -> None:
        assert len(self.trained) == len(set(self.trained))
        assert not set(self.trained) & set(self.ledger.kept())


TestRollouts = Rollouts.TestCase
TestRollouts.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
