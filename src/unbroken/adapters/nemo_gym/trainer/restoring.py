"""Brings servers and ledger to a checkpoint: first a plan that touches nothing they hold, then carried out.

Servers that all go on from their own logs, at or beyond the checkpoint, keep what they have: that is later, and agents
find it again. If one cannot, all get the checkpoint's records, which they read and judge before anything is put in
place: an agent that has written down more calls than its resources server knows of would never make them again.

Not promised: a way back for servers once the first of them has put records in place.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unbroken.adapters.nemo_gym.control import Recovery, Status
from unbroken.adapters.nemo_gym.trainer import cut
from unbroken.adapters.nemo_gym.trainer.gym import SHOWN, Gym
from unbroken.adapters.nemo_gym.trainer.held import Held
from unbroken.adapters.nemo_gym.trainer.ledger import Ledger
from unbroken.adapters.nemo_gym.trainer.payload import Payload, ServerPart, Setting

if TYPE_CHECKING:
    from unbroken.state.graft import Graft

SETTINGS = "servers"
"""The key at which a server's other configuration is told, and by which it is allowed."""


@dataclass
class Restoration:
    """What is to be done to the servers of one `Gym`."""

    gym: Gym
    payload: Payload
    ledger: Ledger
    statuses: dict[str, Status]
    put_back: list[str] = field(default_factory=list[str])
    """Servers that get the checkpoint's records."""

    def carry_out(self) -> None:
        """Put records in place, go on from the ledger, and open all servers."""
        fleet = self.gym._fleet
        recoveries = {name: status.recovery for name, status in self.statuses.items()}
        if self.put_back:
            until = time.monotonic() + fleet.timeout
            with cut.stopped(
                fleet.by_role, lambda: max(0.05, until - time.monotonic()), within=fleet.timeout
            ):
                back = [fleet.get(name) for name in self.put_back]
                recoveries.update(cut.together(lambda r: r.activate(timeout=fleet.patience), back))
        held = {
            name: Held.of(part, continued=name not in self.put_back)
            for name, part in self.payload.servers.items()
        }
        self.gym._restored(self.ledger, held)
        for line in lines_of(recoveries):
            sys.stderr.write(f"unbroken: {line}\n")


def plan(gym: Gym, payload: Payload, graft: Graft) -> Restoration | None:
    """Judge a checkpoint against the servers as they are. What does not fit becomes an error of the plan.

    Raises:
        ServerMissing: a server does not answer.
        CorruptObject: the records or the ledger cannot be read.
    """
    ledger = Ledger.decode(payload.ledger)
    records = {name: part.records for name, part in payload.servers.items()}
    statuses = gym._fleet.settled()
    if not _fits(payload, statuses, graft):
        return None
    gym._connect()
    found = Restoration(gym, payload, ledger, statuses)
    if all(_is_further(statuses[name], part) for name, part in payload.servers.items()) and not _went_back(
        gym, payload, records, ledger
    ):
        return found
    for name, part in payload.servers.items():
        status = statuses[name]
        if not (status.sessions or status.rollouts or records[name] or part.shared):
            continue  # there is nothing, and nothing is to come
        prepared = gym._fleet.get(name).prepare(
            records[name],
            shared=part.shared,
            media=part.media,
            config_hash=payload.settings[name].config_hash,
            timeout=gym._fleet.patience,
        )
        for problem in prepared.problems:
            graft.note_at(f"{problem.key} of {name}", "lost", f"lost: {problem.what}")
        found.put_back.append(name)
    return found


def _fits(payload: Payload, statuses: dict[str, Status], graft: Graft) -> bool:
    """Say what does not fit, and return whether nothing did."""
    now = {name: Setting.of(status) for name, status in statuses.items()}
    fits = True
    for name, saved in payload.settings.items():
        if name not in now:
            graft.error(f"the server {name} was saved, and the program has none of this name.")
            fits = False
        elif (now[name].role, now[name].class_name) != (saved.role, saved.class_name):
            graft.error(
                f"the server {name} was saved as {saved.class_name} ({saved.role}), and is now"
                f" {now[name].class_name} ({now[name].role})."
            )
            fits = False
    others = [name for name in now if name not in payload.settings]
    others += [n for n, s in payload.settings.items() if n in now and now[n].config_hash != s.config_hash]
    if others and not graft.keeps(SETTINGS):
        graft.note_at(
            SETTINGS, "error", f"{', '.join(sorted(others))}: new, or configured otherwise than was saved."
        )
        fits = False
    return fits


def _is_further(status: Status, part: ServerPart) -> bool:
    """Whether a server has got as far as the checkpoint, by its own log. What a model holds is nobody's state."""
    return status.role == "model" or (status.lineage == part.lineage and status.mark >= part.mark)


def _went_back(gym: Gym, payload: Payload, records: dict[str, dict[str, bytes]], ledger: Ledger) -> bool:
    """Whether the training goes back to an older checkpoint than the servers know of: agents have dropped by now what
    it still waits for."""
    wanted = set(ledger.kept())
    for remote in gym._fleet.of("agent"):
        part: ServerPart | None = payload.servers.get(remote.name)
        saved = wanted & records.get(remote.name, {}).keys()
        if part is not None and saved and saved - {summary.id for summary in remote.sessions()}:
            return True
    return False


def lines_of(recoveries: dict[str, Recovery]) -> list[str]:
    """Return one or two lines on how the servers came back; none if nobody was away."""
    came: list[str] = []
    lost: list[str] = []
    doubt: list[str] = []
    for name, r in recoveries.items():
        if r.source == "nothing":
            continue
        held = [f"{n} {word}" for n, word in ((r.sessions, "sessions"), (r.rollouts, "rollouts")) if n]
        held += [f"{r.redone} calls done again"] if r.redone else []
        came.append(f"{name} from its {'log' if r.source == 'log' else 'part of the checkpoint'}")
        came[-1] += f" ({', '.join(held)})" if held else ""
        for session in r.listed:
            if session.tier in ("newest", "replayed") and not session.reasons:
                continue
            why = f": {session.reasons[0]}" if session.reasons else ""
            lost.append(f"{session.id} of {name} is {session.tier}{why}")
        doubt += [
            f"{call.rollout or call.session or call.id} {call.server or name}{call.path}"
            for call in r.in_doubt
        ]
    found = [f"servers came back: {'; '.join(came)}"] if came else []
    told = [f"sessions: {_few(lost)}"] if lost else []
    told += [f"unanswered when they ended, and asked again: {_few(doubt)}"] if doubt else []
    return [*found, *([" · ".join(told)] if told else [])]


def _few(words: list[str]) -> str:
    more = f" and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return f"{'; '.join(words[:SHOWN])}{more}"
