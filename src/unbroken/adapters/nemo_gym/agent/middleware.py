"""What stands in front of an agent's application: control requests, `/run`, and calls that the agent makes to itself.

Everything else goes through untouched: the liveness, the documentation, a `/v1/responses` that somebody else calls, be it
another agent: that one keeps the answer.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Awaitable, Callable

from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.agent.agent import RUN, Agent, fault, refused
from unbroken.adapters.nemo_gym.agent.execution import CALLER, OWN, Caller, RolloutStopped
from unbroken.adapters.nemo_gym.agent.stamps import stamp_of
from unbroken.adapters.nemo_gym.control import Refusal, Refuses
from unbroken.adapters.nemo_gym.serving.asgi import (
    Application,
    ClientGone,
    Receive,
    Reply,
    Scope,
    Send,
    answer,
    body_of,
    call,
    header,
)
from unbroken.adapters.nemo_gym.serving.controls import Controls
from unbroken.adapters.nemo_gym.serving.front import Front
from unbroken.errors import UnbrokenError


class AgentMiddleware(Front):
    def __init__(self, app: Application, *, agent: Agent, controls: Controls) -> None:
        super().__init__(app, controls=controls, close=agent.close)
        self._agent = agent

    async def _call(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == RUN:
            await self._read(self._run, scope, receive, send)
        elif header(scope["headers"], OWN) == self._agent.journal.lineage:
            await self._read(self._nested, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _read(
        self,
        answering: Callable[[Scope, bytes], Awaitable[Reply]],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        try:
            body = await body_of(receive)
        except ClientGone:
            return
        await answer(send, await answering(scope, body))

    async def _run(self, scope: Scope, body: bytes) -> Reply:
        try:
            stamp = stamp_of(scope["headers"], body, agent=self._agent.name)
            return await self._agent.run(stamp, body, lambda: call(self._app, scope, body))
        except Refuses as error:
            return refused(error.refusal)
        except UnbrokenError as error:  # the log cannot be written
            return refused(Refusal(kind="other", error=str(error)))

    async def _nested(self, scope: Scope, body: bytes) -> Reply:
        headers = scope["headers"]
        rollout = header(headers, words.ROLLOUT)
        execution = self._agent.executions.get(rollout)
        if execution is None or header(headers, words.ATTEMPT) != str(execution.attempt):
            stale = f"The rollout {rollout} does not run here under this attempt. Ask for /run."
            return refused(Refusal(kind="stale attempt", error=stale))
        parent = header(headers, words.CALL).removeprefix(execution.call_id(""))
        token = CALLER.set(Caller(execution, scope["path"], parent))
        try:
            return await call(self._app, scope, body)
        except RolloutStopped as error:
            return refused(execution.failure or Refusal(kind="other", error=str(error)))
        except Exception as error:  # noqa: BLE001  (an agent's code may raise anything; it is answered as NeMo Gym does)
            traceback.print_exception(error, file=sys.stderr)
            return fault(error)
        finally:
            CALLER.reset(token)
