"""What a coordinator can have an agent do: see `control`.

While it is quiesced no call goes out and no rollout is let in; those that run wait between two calls. An agent's calls
to itself are no calls in this sense: they end when the calls inside them do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
from blake3 import blake3

from unbroken.adapters.nemo_gym import records
from unbroken.adapters.nemo_gym.agent.agent import Agent
from unbroken.adapters.nemo_gym.agent.journal import Identity
from unbroken.adapters.nemo_gym.control import (
    Activate,
    Adopt,
    Committed,
    Drop,
    Epoch,
    Export,
    Exported,
    Nothing,
    Prepare,
    Prepared,
    Problem,
    Quiesce,
    Recovered,
    Recovery,
    Refuses,
    Sessions,
    SessionSummary,
    Status,
)
from unbroken.adapters.nemo_gym.media import Media
from unbroken.adapters.nemo_gym.records import RolloutRecord
from unbroken.adapters.nemo_gym.serving.controls import Handler, check_epoch
from unbroken.adapters.nemo_gym.serving.versions import versions
from unbroken.engine.saying import say
from unbroken.errors import CorruptObject, ObjectMissing


@dataclass(slots=True)
class _Waiting:
    """What was prepared and not yet activated."""

    rollouts: list[RolloutRecord]
    media: dict[str, bytes]
    problems: tuple[Problem, ...]


@dataclass(slots=True)
class AgentOperations:
    agent: Agent
    identity: Identity
    _waiting: _Waiting | None = None
    _set_back: Recovery | None = field(default=None)
    _lost: list[Recovered] = field(default_factory=list[Recovered])
    """Rollouts that had to begin anew since then."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "status": self.status,
            "adopt": self.adopt,
            "quiesce": self.quiesce,
            "export": self.export,
            "release": self.release,
            "committed": self.committed,
            "prepare": self.prepare,
            "activate": self.activate,
            "drop": self.drop,
            "sessions": self.sessions,
            "digests": self.digests,
        }

    def epoch(self) -> int:
        return self.agent.journal.epoch

    async def status(self, _: Nothing) -> Status:
        agent, journal = self.agent, self.agent.journal
        return Status(
            role="agent",
            name=self.identity.server,
            class_name=self.identity.class_name,
            phase=agent.phase,
            capability="replay",
            lineage=journal.lineage,
            mark=journal.mark,
            committed=journal.committed_mark,
            recovered_mark=journal.recovered_mark,
            first_mark=journal.first_mark,
            epoch=journal.epoch,
            pid=os.getpid(),
            config_hash=self.identity.config_hash,
            versions=versions(),
            rollouts=len(journal.records),
            in_flight=agent.gate.in_flight(),
            recovery=self._recovery(),
            model_calls=agent.outgoing.model_calls,
            replayed=agent.outgoing.replayed,
            unused=tuple(agent.outgoing.unused),
        )

    async def adopt(self, arguments: Adopt) -> Epoch:
        self._waiting = None  # it was the other trainer's
        self.agent.gate.end_drains()
        self.agent.match_gates()
        return Epoch(epoch=await self.agent.journal.adopt(arguments.run))

    async def quiesce(self, arguments: Quiesce) -> Nothing:
        agent, epoch = self.agent, self.agent.journal.epoch
        agent.admission.close()
        try:
            await agent.gate.drain(arguments.timeout)
        except Refuses:
            check_epoch(epoch, agent.journal.epoch)
            raise
        finally:
            agent.match_gates()
        if agent.phase == "open":
            agent.phase = "quiesced"
        return Nothing()

    async def export(self, arguments: Export) -> Exported:
        self._check_still()
        return self.agent.export(arguments.lineage, arguments.mark, lost=self._note_lost)

    async def release(self, _: Nothing) -> Nothing:
        self.agent.phase = "open"
        self.agent.gate.open()
        self.agent.match_gates()
        return Nothing()

    async def committed(self, arguments: Committed) -> Nothing:
        await self.agent.journal.committed(arguments.mark)
        return Nothing()

    async def prepare(self, arguments: Prepare) -> Prepared:
        """Read rollouts. One that cannot be read is a problem, and is not there afterwards."""
        given_media = {
            digest: data for digest, data in arguments.media.items() if blake3(data).hexdigest() == digest
        }
        rollouts: list[RolloutRecord] = []
        problems: list[Problem] = []
        for given in arguments.records:
            try:
                rollout = records.rollout(given.data)
                missing = self._missing(given.data, given_media)
            except (msgspec.ValidationError, msgspec.DecodeError) as error:
                problems.append(Problem(key=given.key, what=f"It is no record of a rollout: {error}."))
                continue
            if rollout.id != given.key:
                problems.append(Problem(key=given.key, what=f"It is the record of {rollout.id!r}."))
            elif missing:
                problems.append(
                    Problem(key=given.key, what=f"It names media that are not there, or damaged: {missing}.")
                )
            else:
                rollouts.append(rollout)
        self._waiting = _Waiting(rollouts, given_media, tuple(problems))
        return Prepared(records=len(rollouts), problems=tuple(problems))

    async def activate(self, _: Activate) -> Recovery:
        if self._waiting is None:
            raise Refuses("other", "Nothing was prepared. Send `prepare` first.")
        self._check_still()
        waiting, self._waiting = self._waiting, None
        self.agent.replace(waiting.rollouts, waiting.media)
        self.agent.phase = "closed"
        self._lost.clear()
        self._set_back = Recovery(
            source="checkpoint",
            rollouts=len(waiting.rollouts),
            listed=tuple(
                Recovered(id=problem.key, tier="refused", reasons=(problem.what,))
                for problem in waiting.problems
            ),
        )
        return self._set_back

    async def drop(self, arguments: Drop) -> Nothing:
        await self.agent.journal.durable(self.agent.drop(arguments.rollouts))
        return Nothing()

    async def sessions(self, _: Nothing) -> Sessions:
        return self._summaries(lambda _: "")

    async def digests(self, _: Nothing) -> Sessions:
        return self._summaries(self.agent.journal.digest)

    def _summaries(self, digest: Callable[[str], str]) -> Sessions:
        journal = self.agent.journal
        return Sessions(
            sessions=[
                SessionSummary(
                    id=record.id,
                    rollout=record.id,
                    attempt=record.attempt,
                    revision=len(record.answers),
                    status=self._state(record),
                    digest=digest(record.id),
                    bytes=journal.bytes_of(record.id),
                    last=record.answers[-1].path if record.answers else "",
                )
                for record in journal.records.values()
            ]
        )

    def _recovery(self) -> Recovery:
        recovery = self._set_back or self.agent.journal.recovery
        return msgspec.structs.replace(recovery, listed=(*recovery.listed, *self._lost))

    def _note_lost(self, rollout: str, why: str) -> None:
        say(f"unbroken: {self.identity.server}: {rollout} cannot be saved, it begins anew: {why}")
        self._lost.append(Recovered(id=rollout, tier="fresh", reasons=(why, "it begins anew")))

    def _state(self, record: RolloutRecord) -> str:
        if record.status:
            return "finished"
        return "open" if self.agent.executions.get(record.id) is None else "running"

    def _missing(self, data: bytes, given: Mapping[str, bytes]) -> str:
        return ", ".join(
            digest for digest in sorted(Media.named(data)) if digest not in given and not self._kept(digest)
        )

    def _kept(self, digest: str) -> bool:
        try:
            self.agent.journal.media.get(digest)
        except (ObjectMissing, CorruptObject):
            return False
        return True

    def _check_still(self) -> None:
        if self.agent.phase == "open" or self.agent.gate.is_open:
            raise Refuses("other", "The agent is open and its rollouts run. Send `quiesce` first.")
