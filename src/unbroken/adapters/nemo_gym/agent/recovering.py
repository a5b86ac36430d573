"""How an agent's log came back: what is told of it, and which rollouts have to begin anew.

A rollout with a damaged line has lost something of what it did. Were it to go on, it would ask again for what is
lost, might be told otherwise, and would go another way over a session that has gone the first one. So it begins anew. Of
a rollout that is over nothing is asked any more: its result stays. Where damage has taken even the label, nobody knows
whose line it was, and all that are not over begin anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.adapters.nemo_gym.agent.folding import Folded
from unbroken.adapters.nemo_gym.control import InFlight, Recovered, Recovery
from unbroken.adapters.nemo_gym.log import Log
from unbroken.adapters.nemo_gym.records import RolloutRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    recovery: Recovery
    lost: tuple[str, ...]
    """Rollouts that have to begin anew."""
    damaged: bool


def recovered(folded: Folded, log: Log, *, agent: str) -> Found:
    """Judge what was read from the log of an agent."""
    spoilt = [(damaged.label, damaged.what) for damaged in log.damaged] + folded.unreadable
    reasons: dict[str, list[str]] = {}
    notes = list(log.notes)
    for label, what in spoilt:
        if label in folded.rollouts:
            reasons.setdefault(label, []).append(what)
        else:
            notes.append(f"{label or 'A line'}: {what}")
        if not label:
            for record in folded.rollouts.values():
                if not record.status:
                    reasons.setdefault(record.id, []).append(
                        f"a line is lost, and it may be one of it: {what}"
                    )
    lost = tuple(rollout for rollout in reasons if not folded.rollouts[rollout].status)
    recovery = Recovery(
        source="nothing" if folded.started is None else "log",
        rollouts=len(folded.rollouts),
        listed=tuple(
            Recovered(id=rollout, tier="fresh", reasons=(*said, "it begins anew"))
            if rollout in lost
            else Recovered(id=rollout, tier="older", reasons=(*said, "its result is there"))
            for rollout, said in reasons.items()
        ),
        in_doubt=tuple(
            InFlight(
                path=asked.path,
                id=call_id(agent, folded.rollouts[rollout], asked.key),
                rollout=rollout,
                server=asked.server,
            )
            for rollout, calls in folded.asked.items()
            for asked in calls.values()
        ),
        notes=tuple(notes),
    )
    return Found(recovery=recovery, lost=lost, damaged=bool(spoilt))


def call_id(agent: str, record: RolloutRecord, key: str) -> str:
    """Return the name of a call that no other call has. In each attempt of its rollout's incarnation it is the same.

    The agent is a part of it: two agents may be asked for the same rollout, and each needs a session of its own.
    """
    begun = f"{record.id}.{record.incarnation}" if record.incarnation else record.id
    return f"{begun}@{agent}#{key}"
