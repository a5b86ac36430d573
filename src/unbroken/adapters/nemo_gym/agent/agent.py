"""An agent's rollouts as they are asked for, run, and answered.

Each rollout runs in a task of its own, so that a client that goes away takes nothing with it. Whoever asks for a rollout that
runs gets what it comes to; who asks for one that is over gets what it came to. A rollout that an infrastructure has failed
is never answered with a result, whatever its agent's code has made of the failure.

A rollout is its id and its row: another row under the same id is another rollout, of which nothing is there yet.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.agent.execution import CALLER, Caller, Execution, Executions
from unbroken.adapters.nemo_gym.agent.journal import Journal
from unbroken.adapters.nemo_gym.agent.outgoing import PATIENCE, Others, Outgoing
from unbroken.adapters.nemo_gym.agent.stamps import Stamp
from unbroken.adapters.nemo_gym.control import LOST, Exported, InFlight, Phase, Refusal, Refuses
from unbroken.adapters.nemo_gym.records import Answer, Asked, RolloutRecord
from unbroken.adapters.nemo_gym.serving.asgi import Headers, Reply
from unbroken.adapters.nemo_gym.serving.gate import Gate
from unbroken.engine.saying import say
from unbroken.errors import CorruptObject, ObjectMissing, UnbrokenError

RUN = "/run"

Start = Callable[[], Awaitable[Reply]]
"""Runs the agent's own code for a request."""


class Agent:
    """What stands around one agent's application."""

    def __init__(
        self, journal: Journal, others: Others, *, opened: bool = True, patience: float = PATIENCE
    ) -> None:
        self.journal = journal
        self.executions = Executions()
        self.gate = Gate(opened=opened)
        self.admission = Gate(opened=opened)
        self.phase: Phase = "open" if opened else "closed"
        self.outgoing = Outgoing(journal=journal, gate=self.gate, others=others, patience=patience)
        self._earlier = {r.id for r in journal.records.values() if r.status and not r.stamped}
        """Unstamped rollouts that a former process has finished: whoever asks for one has not got it."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        """Of its instance."""
        return self.outgoing.others.own

    async def run(self, stamp: Stamp, body: bytes, start: Start) -> Reply:
        """Answer a request for a rollout.

        Raises:
            Refuses: a later attempt of it is known.
        """
        async with self.admission.passing(InFlight(path=RUN, rollout=stamp.rollout)):
            outcome = self._outcome(stamp, body, start)
        return outcome if isinstance(outcome, Reply) else await asyncio.shield(outcome)

    def _outcome(self, stamp: Stamp, body: bytes, start: Start) -> Reply | asyncio.Future[Reply]:
        rollout = self._numbered(stamp)
        running = self.executions.get(rollout)
        record = self.journal.records.get(rollout)
        known = running.attempt if running is not None else 0 if record is None else record.attempt
        if stamp.attempt < known:
            raise Refuses("stale attempt", _stale(rollout, stamp.attempt, known))
        if record is not None and record.row and record.row != stamp.row:
            other = f"Another row was asked for under the id {rollout}: this one's rollout is over."
            self.executions.stop(rollout, Refusal(kind="stale attempt", error=other))
            self.journal.begin_anew(rollout)
            self._earlier.discard(rollout)
        elif running is not None:
            if stamp.attempt == running.attempt:
                return running.outcome
            stale = _stale(rollout, running.attempt, stamp.attempt)
            self.executions.stop(rollout, Refusal(kind="stale attempt", error=stale))
        elif record is not None and record.status:
            reply = self._recorded(record) if record.stamped or rollout in self._earlier else None
            self._earlier.discard(rollout)
            if reply is not None:
                return reply
            # The same row once more, in the same process: another rollout. Or its result cannot be read any more.
            self.journal.begin_anew(rollout)
        return self._begin(rollout, stamp, body, start).outcome

    def _numbered(self, stamp: Stamp) -> str:
        if stamp.numbered:
            return stamp.rollout
        ids = (f"{stamp.rollout}~{number}" for number in itertools.count(1))
        return next(rollout for rollout in ids if self.executions.get(rollout) is None)

    def _recorded(self, record: RolloutRecord) -> Reply | None:
        try:
            result = self.journal.result(record)
        except (ObjectMissing, CorruptObject) as error:
            say(f"unbroken: the result of {record.id} cannot be read, it begins anew: {error}")
            return None
        headers = [(b"content-type", b"application/json"), (words.REPLAYED.encode(), b"1")]
        return Reply(record.status, headers + _policies(record), result)

    def _begin(self, rollout: str, stamp: Stamp, body: bytes, start: Start) -> Execution:
        record, ticket = self.journal.dispatch(
            rollout, attempt=stamp.attempt, body=body, stamped=stamp.stamped, row=stamp.row
        )
        execution = Execution(
            agent=self.name,
            record=record,
            attempt=stamp.attempt,
            policy_version=stamp.policy_version,
            kept=self.journal.answers(rollout),
            in_doubt=self.journal.in_doubt(rollout),
        )
        self.executions.begin(execution)
        task = asyncio.get_running_loop().create_task(self._carried_out(execution, start, ticket))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return execution

    async def _carried_out(self, execution: Execution, start: Start, ticket: int) -> None:
        CALLER.set(Caller(execution, RUN))
        reply = Reply()
        try:
            # Before its first call: else a session could be there whose incarnation nobody remembers.
            await self.journal.durable(ticket)
            reply = await start()
            reply = await self._settled(execution, reply)
        except asyncio.CancelledError:
            execution.fail(Refusal(kind="closed", error="The agent shuts down. Ask for the rollout again."))
            raise
        except UnbrokenError as error:  # its own, or the log's
            execution.fail(Refusal(kind="other", error=str(error)))
        except Exception as error:  # noqa: BLE001  (an agent's code may raise anything; it is answered as NeMo Gym does)
            traceback.print_exception(error, file=sys.stderr)
            reply = await self._failed(execution, fault(error))
        finally:
            if execution.failure is not None:
                reply = self._refused(execution, execution.failure)
            self.executions.end(execution)
            if not execution.outcome.done():
                execution.outcome.set_result(reply)

    async def _settled(self, execution: Execution, reply: Reply) -> Reply:
        """Decide what the agent's answer means, and keep it if it is a result."""
        if execution.failure is not None:
            return reply
        if reply.status >= 500:
            return await self._failed(execution, reply)
        if reply.status >= 400:  # the row was not understood: nothing has happened
            if not self.journal.answers(execution.rollout):
                self.journal.forget([execution.rollout])
            return reply
        if astray := execution.astray():
            execution.fail(Refusal(kind="lost session", error=_strayed(astray)))
            return reply
        for answer in execution.unused():
            self.outgoing.unused.append(f"{execution.rollout} {answer.server} {answer.path}")
        await self.journal.finish(execution.rollout, status=reply.status, result=reply.body)
        return Reply(reply.status, reply.headers + _policies(execution.record), reply.body)

    async def _failed(self, execution: Execution, reply: Reply) -> Reply:
        """An agent's code has failed on what it was told. What may be told otherwise is asked for again next time."""
        if execution.failure is None:
            await self.journal.ask_again(execution.rollout, _is_lasting)
        marked = [(key, value) for key, value in reply.headers if key.lower() != words.REFUSED.encode()]
        return Reply(reply.status, [*marked, (words.REFUSED.encode(), b"other")], reply.body)

    def _refused(self, execution: Execution, refusal: Refusal) -> Reply:
        if refusal.kind in LOST and self.executions.get(execution.rollout) is execution:
            self.journal.begin_anew(execution.rollout)
            again = f"{refusal.error} What is kept of the rollout was dropped: ask for it again, and it begins afresh."
            refusal = Refusal(kind=refusal.kind, error=again)
        return refused(refusal)

    def drop(self, rollouts: list[str]) -> int | None:
        """Keep nothing of these rollouts; those that run come to nothing. Returns what `Journal.durable` waits for."""
        for rollout in rollouts:
            self.executions.stop(
                rollout, Refusal(kind="stale attempt", error=f"The rollout {rollout} was dropped.")
            )
            self._earlier.discard(rollout)
        return self.journal.forget(rollouts)

    def export(self, lineage: str, mark: int, *, lost: Callable[[str, str], None]) -> Exported:
        """Return what has changed since `mark`. Rollouts that cannot be given whole begin anew, and `lost` is told."""

        def stop(rollout: str, why: str) -> None:
            gone = f"The rollout {rollout} has lost an image: {why} Ask for it again, and it begins afresh."
            self.executions.stop(rollout, Refusal(kind="lost session", error=gone))
            lost(rollout, why)

        return self.journal.export(lineage, mark, lost=stop)

    def replace(self, rollouts: list[RolloutRecord], media: dict[str, bytes]) -> None:
        """Put these rollouts in the place of all."""
        self.executions.stop_all(
            Refusal(
                kind="stale attempt",
                error="The agent was set back to a checkpoint. Ask for the rollout again.",
            )
        )
        self.journal.replace(rollouts, media)
        self._earlier = {r.id for r in rollouts if r.status and not r.stamped}

    def match_gates(self) -> None:
        """Let rollouts in if their calls are let out."""
        if self.gate.is_open:
            self.admission.open()
        else:
            self.admission.close()

    def running(self) -> int:
        return len(self.executions)

    async def close(self) -> None:
        """End what runs, and the log. Rollouts that are not over go on when they are asked for again."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        self.journal.close()


def refused(refusal: Refusal) -> Reply:
    """Return the answer that is no answer: why, in one sentence, and never a reward."""
    status = {"stale attempt": 409, "format": 400}.get(refusal.kind, 503)
    headers = [(b"content-type", b"application/json"), (words.REFUSED.encode(), refusal.kind.encode())]
    return Reply(status, headers, msgspec.json.encode(refusal))


def fault(error: Exception) -> Reply:
    """Return what NeMo Gym answers when an agent's own code raises."""
    said: Any = getattr(error, "response_content", None)
    text = repr(error) if said is None else f"{error!r}: {said!r}"
    return Reply(500, [(b"content-type", b"application/json")], msgspec.json.encode(text))


def _policies(record: RolloutRecord) -> Headers:
    """Name the policies that a rollout has had, in the order in which they came."""
    versions = dict.fromkeys(answer.policy_version for answer in record.answers if answer.policy_version)
    return [(words.POLICY.encode(), ",".join(versions).encode())] if versions else []


def _is_lasting(answer: Answer) -> bool:
    """Whether an answer would be the same again, for all that is known."""
    return answer.status < 400 or (answer.status < 500 and not answer.model)


def _strayed(astray: list[Answer | Asked]) -> str:
    first = astray[0]
    return (
        f"{len(astray)} calls of an earlier attempt were not asked for again, the first of them {first.server}{first.path}, and"
        " others were made on top of what they had done: the agent is not the same in each attempt, so that its reward"
        " would be that of neither."
    )


def _stale(rollout: str, attempt: int, newer: int) -> str:
    return f"Attempt {attempt} of the rollout {rollout} is over: attempt {newer} is known. Ask with that one, or a later one."
