"""Which rollouts there are and how far each has come: a state machine without threads, clocks or servers.

```
waiting -> dispatched -> completed | failed -> consumed
              ^  |
              +--+  again, under the next attempt
```

Invariants: an id never changes, and none is given twice; a result counts only under the attempt that is under way; a
result is handed out once, and is consumed from the next capture on. So a restart gives out again exactly what was
handed out after the checkpoint, and sends again exactly what was not finished.

A training that is set back goes on in another *timeline*: servers may hold what the ledger that it left had sent under the
ids that come next, and a policy that is not this one's made it. So ids then begin with a name drawn at random. In a run
that was never set back the name is empty.

Not promised: anything about rollouts that another ledger has sent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from unbroken.adapters.nemo_gym import words
from unbroken.errors import ConfigError, CorruptObject, InternalError

Outcome: TypeAlias = Literal["completed", "failed", "unresolved"]
"""An answer with a reward; known to have none; nobody knows. Only the first has a reward, and it is never made up."""
Owner: TypeAlias = Literal["collect", "submit", "queue"]
"""By which call it was sent, and so by which its result is handed out."""
Progress: TypeAlias = Literal["waiting", "dispatched", "finished", "handed"]


@dataclass(frozen=True, slots=True)
class Rollout:
    """One rollout that has come to its end. `response` is the whole answer of `/run`, `reward` the one in it.

    `outcome` "failed": it has no reward, for the reason `error`; "unresolved": its servers said nothing in time. Neither is
    to be trained on. `policy_versions` are those whose answers are in it; more than one after a restart in the middle.
    """

    id: str
    row: Mapping[str, Any]
    attempt: int
    outcome: Outcome
    reward: float | None = None
    response: Mapping[str, Any] | None = None
    error: str = ""
    policy_versions: tuple[str, ...] = ()


class Entry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One rollout. `row` is what is sent, without the attempt, and `response` what was answered, both in JSON."""

    id: str
    row: bytes
    agent: str
    owner: Owner = "submit"
    attempt: int = 0
    tries: int = 0
    """How many attempts were spent on failures."""
    progress: Progress = "waiting"
    outcome: Outcome | None = None
    reward: float | None = None
    response: bytes = b""
    error: str = ""
    policy_versions: tuple[str, ...] = ()
    finished: int = 0
    """The how-many-eth it was to finish."""


class _State(msgspec.Struct, kw_only=True):
    """`completed` counts the rollouts with a reward, and `rewards` is the sum of these: for people. `consumed` are handed
    out, and may still be kept by the servers: who kills a training may do so before they hear of it."""

    version: int
    round: int
    finished: int
    completed: int = 0
    rewards: float = 0.0
    entries: list[Entry]
    consumed: list[str] = []
    timeline: str = ""


_VERSION = 1


class Ledger:
    """The rollouts of one training."""

    def __init__(self) -> None:
        self.timeline = ""
        """What the ids of new rollouts begin with."""
        self._round = 0
        self._finished = 0
        self._completed = 0
        self._rewards = 0.0
        self._entries: dict[str, Entry] = {}
        self._consumed: list[str] = []
        """Were handed out before the newest capture, and are still kept by the servers."""
        self._captured = 0
        """How many of them the newest capture has left out."""

    @classmethod
    def decode(cls, data: bytes) -> Ledger:
        """Return the ledger that was captured.

        Raises:
            CorruptObject: this is none.
        """
        try:
            state = msgspec.msgpack.decode(data, type=_State)
        except msgspec.DecodeError as error:
            raise CorruptObject(f"The ledger of rollouts cannot be read: {error}.") from error
        if state.version != _VERSION:
            raise CorruptObject(
                f"The ledger of rollouts has version {state.version}, and {_VERSION} is read."
            )
        found = cls()
        found._round, found._finished = state.round, state.finished
        found._completed, found._rewards = state.completed, state.rewards
        found._entries = {entry.id: entry for entry in state.entries}
        found._consumed = state.consumed
        found.timeline = state.timeline
        return found

    def encode(self) -> bytes:
        """Return the state. What was handed out is consumed by now, and no part of it."""
        handed = [entry.id for entry in self._entries.values() if entry.progress == "handed"]
        for rollout in handed:
            del self._entries[rollout]
        self._consumed += handed
        self._captured = len(self._consumed)
        state = _State(
            version=_VERSION,
            round=self._round,
            finished=self._finished,
            completed=self._completed,
            rewards=self._rewards,
            entries=list(self._entries.values()),
            consumed=self._consumed,
            timeline=self.timeline,
        )
        return msgspec.msgpack.encode(state)

    def rollouts_to_drop(self) -> list[str]:
        """Return which rollouts no restart asks for again, now that the newest capture is durable."""
        return self._consumed[: self._captured]

    def dropped(self, rollouts: Iterable[str]) -> None:
        """The servers keep nothing of these any more."""
        gone = set(rollouts)
        before = self._consumed[: self._captured]
        self._captured = sum(rollout not in gone for rollout in before)
        self._consumed = [rollout for rollout in self._consumed if rollout not in gone]

    def add(
        self,
        rows: Sequence[Mapping[str, Any]],
        agents: Sequence[str],
        *,
        owner: Owner = "submit",
        policy_version: str = "",
    ) -> list[str]:
        """Begin a round: one rollout for each row. Returns their ids.

        Raises:
            ConfigError: a row cannot be sent as JSON; nothing was added.
        """
        number = self._round
        entries: list[Entry] = []
        for index, (row, agent) in enumerate(zip(rows, agents, strict=True)):
            rollout = f"{self.timeline}{number}-{index}"
            stamped = {
                **row,
                words.TASK_KEY: number,
                words.SAMPLE_KEY: index,
                words.ROLLOUT_KEY: rollout,
            }
            if policy_version:
                stamped[words.POLICY_KEY] = policy_version
            try:
                body = json.dumps(stamped, allow_nan=False).encode()
            except (TypeError, ValueError, RecursionError) as error:
                raise ConfigError(
                    f"Row {index} cannot be sent: {error}.", hint="Rows hold what JSON can hold."
                ) from error
            entries.append(Entry(id=rollout, row=body, agent=agent, owner=owner))
        self._round += 1
        self._entries.update((entry.id, entry) for entry in entries)
        return [entry.id for entry in entries]

    def dispatch(self, rollout: str) -> tuple[Entry, bytes]:
        """Return a rollout that is to be sent now, and the body to send."""
        entry = self._entry(rollout)
        if entry.progress not in ("waiting", "dispatched"):
            raise InternalError(f"Rollout {rollout} is {entry.progress} and would be sent again.")
        entry.progress = "dispatched"
        row = json.loads(entry.row)
        return entry, json.dumps({**row, words.ATTEMPT_KEY: entry.attempt}).encode()

    def again(self, rollout: str, attempt: int, *, spent: bool) -> bool:
        """Let a rollout begin its next attempt, `spent` if the last one counts as a failure. False if `attempt` is not
        the one under way: then it is somebody else's turn."""
        entry = self._under_way(rollout, attempt)
        if entry is None:
            return False
        entry.attempt += 1
        entry.tries += spent
        return True

    def complete(
        self,
        rollout: str,
        attempt: int,
        *,
        reward: float,
        response: bytes,
        policy_versions: Iterable[str] = (),
    ) -> bool:
        """Take a result. False if it comes too late: another attempt is under way, or it is finished."""
        entry = self._under_way(rollout, attempt)
        if entry is None:
            return False
        if not math.isfinite(reward):
            raise InternalError(f"Rollout {rollout} would be completed with the reward {reward}.")
        entry.reward, entry.response = reward, response
        entry.policy_versions = tuple(policy_versions)
        self._completed += 1
        self._rewards += reward
        self._finish(entry, "completed")
        return True

    def fail(
        self, rollout: str, attempt: int, *, outcome: Outcome, error: str, response: bytes = b""
    ) -> bool:
        """Take the end of a rollout that has no result. False if it comes too late."""
        entry = self._under_way(rollout, attempt)
        if entry is None:
            return False
        entry.error, entry.response = error, response
        self._finish(entry, outcome)
        return True

    def leave(self, name: str) -> None:
        """Go on in another timeline: no rollout that is added from now on has an id that was given before."""
        self.timeline = f"{name}."

    def resume(self) -> list[str]:
        """Return what is to be sent after a restart: under a new attempt, what had been sent before it."""
        for entry in self._entries.values():
            if entry.progress == "dispatched":
                entry.attempt += 1
        return self.open()

    def open(self) -> list[str]:
        """Return the rollouts that are not finished."""
        return [e.id for e in self._entries.values() if e.progress in ("waiting", "dispatched")]

    def ids(self) -> list[str]:
        """Return all rollouts that are in the ledger."""
        return list(self._entries)

    def kept(self) -> list[str]:
        """Return all rollouts that were not handed out."""
        return [e.id for e in self._entries.values() if e.progress != "handed"]

    def finished(self, owner: Owner) -> list[str]:
        """Return the finished rollouts that nobody has got yet, in the order in which they finished."""
        done = [e for e in self._entries.values() if e.owner == owner and e.progress == "finished"]
        return [e.id for e in sorted(done, key=lambda e: e.finished)]

    def outstanding(self, owner: Owner) -> int:
        """Return how many rollouts of this owner are finished or will be, and were not handed out."""
        return sum(e.owner == owner and e.progress != "handed" for e in self._entries.values())

    def is_finished(self, rollouts: Iterable[str]) -> bool:
        """Whether each of these has come to its end."""
        return all(self._entry(rollout).progress == "finished" for rollout in rollouts)

    def knows(self, rollout: str) -> bool:
        """Whether there is such a rollout."""
        return rollout in self._entries

    def hand_out(self, rollouts: Sequence[str]) -> list[Rollout]:
        """Return finished rollouts, each for the only time."""
        entries = [self._entry(rollout) for rollout in rollouts]
        for entry in entries:
            if entry.progress != "finished":
                raise InternalError(f"Rollout {entry.id} is {entry.progress} and would be handed out.")
        for entry in entries:
            entry.progress = "handed"
        return [_rollout(entry) for entry in entries]

    def give_up(self, rollouts: Iterable[str]) -> None:
        """Forget rollouts that nobody waits for any more. A result that comes later is refused."""
        for rollout in rollouts:
            entry = self._entries.get(rollout)
            if entry is not None and entry.progress != "handed":
                del self._entries[rollout]
                self._consumed.append(rollout)

    def _entry(self, rollout: str) -> Entry:
        entry = self._entries.get(rollout)
        if entry is None:
            raise InternalError(f"There is no rollout {rollout} in the ledger.")
        return entry

    def _under_way(self, rollout: str, attempt: int) -> Entry | None:
        entry = self._entries.get(rollout)
        current = entry is not None and entry.progress == "dispatched" and entry.attempt == attempt
        return entry if current else None

    def _finish(self, entry: Entry, outcome: Outcome) -> None:
        self._finished += 1
        entry.finished = self._finished
        entry.outcome = outcome
        entry.progress = "finished"


def _rollout(entry: Entry) -> Rollout:
    if entry.outcome is None:
        raise InternalError(f"Rollout {entry.id} has no outcome.")
    row: dict[str, Any] = json.loads(entry.row)
    response, error = None, entry.error
    if entry.response:
        try:
            response = json.loads(entry.response)
        except RecursionError:  # read in a thread of little depth, and asked for in one of more
            error = error or "Its answer is nested too deeply to be read here."
    stamped = (str(row[words.POLICY_KEY]),) if words.POLICY_KEY in row else ()
    return Rollout(
        id=entry.id,
        row=row,
        attempt=entry.attempt,
        outcome=entry.outcome,
        reward=entry.reward,
        response=response if isinstance(response, dict) else None,
        error=error,
        policy_versions=entry.policy_versions or stamped,
    )
