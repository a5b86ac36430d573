"""Brings servers and ledger to a checkpoint: first a plan that touches nothing they hold, then carried out.

Servers that all go on from their own logs, at or beyond the checkpoint, keep what they have: that is later, and agents
find it again. If one cannot, all get the checkpoint's records, which they read and judge before anything is put in
place: an agent that has written down more calls than its resources server knows of would never make them again.

A training that goes back behind a checkpoint that was committed, or that goes on with other settings, leaves what it has
begun since: its rollouts get ids of their own from there on, and the servers drop what the checkpoint does not know. Else the
results of another policy would be trained on.

Not promised: a way back for servers once the first of them has put records in place.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from unbroken.adapters.nemo_gym import records
from unbroken.adapters.nemo_gym.control import Recovery, Status
from unbroken.adapters.nemo_gym.trainer import cut
from unbroken.adapters.nemo_gym.trainer.coordinator import SHOWN, Coordinator
from unbroken.adapters.nemo_gym.trainer.held import Held
from unbroken.adapters.nemo_gym.trainer.ledger import Ledger
from unbroken.adapters.nemo_gym.trainer.payload import Payload, ServerPart, Setting
from unbroken.engine.saying import say

if TYPE_CHECKING:
    from unbroken.adapters.nemo_gym.trainer.remote import Remote
    from unbroken.state.graft import Difference, Graft

SETTINGS = "servers"
"""The key at which a server's other configuration is told, and by which it is allowed."""


@dataclass
class Restoration:
    """What is to be done to the servers of one `Gym`."""

    of: Coordinator
    payload: Payload
    ledger: Ledger
    statuses: dict[str, Status]
    differences: Sequence[Difference]
    """What the whole plan has found, once it is carried out."""
    put_back: list[str] = field(default_factory=list[str])
    """Servers that get the checkpoint's records."""
    leaves: str = ""
    """Why what was begun after the checkpoint must not be used; empty: it may."""

    def carry_out(self) -> None:
        """Put records in place, go on from the ledger, and open all servers."""
        leaves = self.leaves
        if kept := [d.place for d in self.differences if d.level == "kept"]:
            leaves = leaves or f"the settings {_few(kept)} are others than were saved"
        fleet = self.of.fleet
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
        if leaves:
            self.ledger.leave(secrets.token_hex(3))
        self.of.go_on(self.ledger, held, leaves=leaves)
        for line in lines_of(recoveries):
            say(f"unbroken: {line}")


def plan(of: Coordinator, payload: Payload, graft: Graft) -> Restoration | None:
    """Judge a checkpoint against the servers as they are. What does not fit becomes an error of the plan.

    Raises:
        ServerMissing: a server does not answer.
        CorruptObject: the records or the ledger cannot be read.
    """
    ledger = Ledger.decode(payload.ledger)
    saved = {name: part.records for name, part in payload.servers.items()}
    statuses = of.fleet.settled()
    if not _fits(payload, statuses, graft):
        return None
    of.connect()
    found = Restoration(of, payload, ledger, statuses, graft.differences)
    behind = [name for name, part in payload.servers.items() if _is_committed_beyond(statuses[name], part)]
    if behind:
        found.leaves = f"{', '.join(behind)} knew of a later checkpoint than this one"
    elif _are_others(payload, statuses):
        found.leaves = "servers are configured otherwise than was saved"
    if (
        all(_is_further(statuses[name], part) for name, part in payload.servers.items())
        and not any(_could_bring_back(statuses[name], saved[name]) for name in payload.servers)
        and not _went_back(of, payload, saved, ledger)
        and not any(
            _is_older(remote, saved.get(remote.name, {}), wanted=wanted)
            for remote, wanted in (
                # An agent keeps less of what no trainer has sent, once it is answered.
                *((agent, set(ledger.kept())) for agent in of.fleet.of("agent")),
                *((resources, None) for resources in of.fleet.of("resources")),
            )
        )
    ):
        return found
    for name, part in payload.servers.items():
        status = statuses[name]
        if not (status.sessions or status.rollouts or saved[name] or part.shared):
            continue  # there is nothing, and nothing is to come
        prepared = of.fleet.get(name).prepare(
            saved[name],
            shared=part.shared,
            media=part.media,
            config_hash=payload.settings[name].config_hash,
            timeout=of.fleet.patience,
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
    others = _are_others(payload, statuses)
    if others and not graft.keeps(SETTINGS):
        graft.note_at(
            SETTINGS, "error", f"{', '.join(sorted(others))}: new, or configured otherwise than was saved."
        )
        fits = False
    return fits


def _are_others(payload: Payload, statuses: dict[str, Status]) -> list[str]:
    """Return the servers that were not saved, or are configured otherwise than they were."""
    saved = {name: setting.config_hash for name, setting in payload.settings.items()}
    return [name for name, status in statuses.items() if saved.get(name) != status.config_hash]


def _is_further(status: Status, part: ServerPart) -> bool:
    """Whether a server has got as far as the checkpoint, by its own log. What a model holds is nobody's state.

    A process begins to count above all that a former one may have counted. So a mark that lies below that, and above what was
    found in the log, is one of a log that has lost its end.
    """
    lost = status.recovered_mark < part.mark < status.first_mark
    return status.role == "model" or (
        status.lineage == part.lineage and status.mark >= part.mark and not lost
    )


def _is_committed_beyond(status: Status, part: ServerPart) -> bool:
    """Whether a server was told that a later checkpoint than this one is durable."""
    return status.lineage == part.lineage and status.committed > part.mark


def _could_bring_back(status: Status, saved: dict[str, bytes]) -> bool:
    """Whether a server has refused a session of its log that the checkpoint holds in good state."""
    recovery = status.recovery
    if status.role != "resources" or recovery.source != "log":
        return False
    refused = [saved[one.id] for one in recovery.listed if one.tier == "refused" and one.id in saved]
    return any(_is_open(data) for data in refused)


def _is_open(data: bytes) -> bool:
    try:
        return records.session(data).status == "open"
    except msgspec.DecodeError:
        return False


def _went_back(of: Coordinator, payload: Payload, saved: dict[str, dict[str, bytes]], ledger: Ledger) -> bool:
    """Whether the training goes back to an older checkpoint than the servers know of: agents have dropped by now what
    it still waits for."""
    wanted = set(ledger.kept())
    for remote in of.fleet.of("agent"):
        part: ServerPart | None = payload.servers.get(remote.name)
        held = wanted & saved.get(remote.name, {}).keys()
        if part is not None and held and held - {summary.id for summary in remote.sessions()}:
            return True
    return False


def _is_older(remote: Remote, saved: dict[str, bytes], *, wanted: set[str] | None) -> bool:
    """Whether a server knows of fewer calls of a session than the checkpoint does; an agent: of one of the rollouts `wanted`.

    A log that was put back from a copy is found by its marks once: the process that reads it counts above all of them.
    """
    live = {summary.id: summary for summary in remote.sessions()} if saved else {}
    for key, data in saved.items():
        summary = live.get(key) if wanted is None or key in wanted else None
        if summary is not None and summary.status not in ("retired", "moved", "refused"):
            known = _reached(data, is_agent=wanted is not None)
            if (summary.attempt, summary.revision) < known:
                return True
    return False


def _reached(data: bytes, *, is_agent: bool) -> tuple[int, int]:
    """Return under which attempt how many calls are in a record; none where it cannot be read, which is said elsewhere."""
    try:
        if is_agent:
            rollout = records.rollout(data)
            return rollout.attempt, len(rollout.answers)
        session = records.session(data)
    except msgspec.DecodeError:
        return 0, 0
    return session.attempt, session.revision


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
