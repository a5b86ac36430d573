"""The environments of one training: what is put in place for their capture, and what that promises.

One of no known family is built twice in another process, or copied, and tried out; that takes seconds, once
for each kind. Asked again, only environments that were not there before are looked at.

Not promised: environments that are in nobody's hands, such as one that a function makes for itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from unbroken.capture.async_vectors import OWN_WORKER, has_known_worker, is_idle, is_in_workers, workers_of
from unbroken.capture.attaching import kind_of
from unbroken.capture.environments import Attachment, Verdict, attach, chain, known
from unbroken.capture.parallel import agents_of, verdict_on_agents
from unbroken.capture.probe import probe
from unbroken.capture.source import ENVIRONMENTS
from unbroken.capture.workers import look_at
from unbroken.state.snapshot import Promise
from unbroken.types import Fidelity, worse


class WatchedEnvironments:
    """Watches the environments among the objects that it is shown."""

    def __init__(self) -> None:
        self._attached: dict[int, tuple[str, object, Verdict]] = {}
        """By identity, for as long as they are held here: the name it was first met under, itself, the verdict."""
        self._attachments: list[Attachment] = []
        self._vectors: list[Any] = []
        """Those whose environments live in workers."""
        self._kinds: dict[str, Verdict] = {}

    def watch(self, objects: Mapping[str, object]) -> dict[str, Promise]:
        """Put in place what the capture of the environments among `objects` needs; return what it promises.

        To be called right after their first reset, or before it, and before anything is captured.
        """
        promise = Promise(Fidelity.EXACT)
        for name, value in objects.items():
            if is_environment(value) and id(value) not in self._attached:
                self._attached[id(value)] = (name, value, self._attach(value))
        for name, _, verdict in self._attached.values():
            promise = worse(promise, Promise(verdict.fidelity, f"{name}: {verdict.reason}"))
        return {ENVIRONMENTS: promise} if self._attached else {}

    def release(self) -> None:
        """Leave the environments as they were found."""
        for attachment in reversed(self._attachments):
            attachment.detach()
        self._attachments.clear()
        for vector in self._vectors:
            if is_idle(vector):  # closed: nothing is left of them
                workers_of(vector).ask("detach")
        self._vectors.clear()
        self._attached.clear()

    def _attach(self, env: Any) -> Verdict:
        """Return the worst verdict on the members of a vector, each looked at by its own kind; of a single
        environment the verdict on it."""
        *_, base = chain(env)
        if is_in_workers(base):
            return self._in_workers(base)
        if (together := agents_of(base)) is not None:
            return reduce(worse, map(self._of_agents, together))
        members = next((inner for layer in chain(env) if (inner := vars(layer).get("envs"))), None)
        if members is None:
            # A vector without members in this process cannot be tried out; what it is, its class tells.
            known = self._probed(env) if isinstance(env, sys.modules["gymnasium"].Env) else None
            return self._put(env, known)
        return reduce(worse, [self._put(member, self._probed(member)) for member in members])

    def _of_agents(self, env: Any) -> Verdict:
        return self._verdict(kind_of(env), None, lambda: verdict_on_agents(env))

    def _in_workers(self, vector: Any) -> Verdict:
        if not has_known_worker(vector):
            return OWN_WORKER
        self._vectors.append(vector)
        found = look_at(workers_of(vector), self._verdict)
        return reduce(worse, [seen.attached or seen.verdict for seen in found])

    def _verdict(self, kind: str, sure: Verdict | None, find_out: Callable[[], Verdict]) -> Verdict:
        if sure is not None:
            return sure
        if kind not in self._kinds:
            self._kinds[kind] = find_out()
        return self._kinds[kind]

    def _put(self, env: Any, verdict: Verdict | None) -> Verdict:
        attachment = attach(env, verdict=verdict)
        self._attachments.append(attachment)
        return attachment.verdict

    def _probed(self, env: Any) -> Verdict:
        return self._verdict(kind_of(env), known(env), lambda: probe(env))


def is_environment(value: object) -> bool:
    """Whether a value is an environment or a vector of them. Never imports gymnasium to find out."""
    core: Any = sys.modules.get("gymnasium")
    return core is not None and isinstance(value, (core.Env, core.vector.VectorEnv))
