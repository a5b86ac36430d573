"""Environments in processes of their own (SubprocVecEnv), without a change to the user's code.

An agent is set as an attribute of each environment and called through it, with SB3's own commands. In
the worker it walks the environment and the global generators of that process; here the answer becomes a
`Scope` in the document. A restore first plans in every worker: all of them, or none, are written.

An error in a worker is an answer, never an exception: SB3's worker would die of it.

Not promised: vectored environments that answer through something else than SB3's `_worker`.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from unbroken.adapters.sb3.policy import AGENT, worker_policy
from unbroken.capture.attaching import attach_once, kind_of, name_of, verdict_on
from unbroken.capture.elsewhere import Captured, Restore, captured, planned, restore_of, scope_of, tell
from unbroken.capture.environments import Verdict, known
from unbroken.capture.generators import GlobalGenerators
from unbroken.capture.source import setting_names
from unbroken.errors import InternalError, NotCapturable, RestoreFailed
from unbroken.state.nodes import List, Scope, Value, class_name
from unbroken.state.policy import Captor, Phase

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

WORKERS = "workers"
_SUBPROC = "stable_baselines3.common.vec_env.subproc_vec_env:SubprocVecEnv"


@dataclass(slots=True)
class Answer:
    """What a worker says. `error` is empty if all went well."""

    error: str = ""
    state: Captured | None = None
    differences: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    """Of a plan: (level, place, detail)."""
    kind: str = ""
    """What one verdict holds for."""
    name: str = ""
    """How people call the environment."""
    settings: frozenset[str] = frozenset()
    verdict: Verdict | None = None


class Agent:
    """Runs in the worker. Empty when it is sent; a plan waits in it to be applied."""

    def __init__(self) -> None:
        self._plan: Graft | None = None

    def __call__(self, command: str, *arguments: Any) -> Answer:
        frame = sys._getframe(1)
        if frame.f_code.co_name != "_worker" or "env" not in frame.f_locals:
            return Answer(error=f"it is called by {frame.f_code.co_name}, not by a worker of SB3")
        try:
            return getattr(self, f"do_{command}")(frame.f_locals["env"], *arguments)  # type: ignore[no-any-return]
        except Exception as error:  # noqa: BLE001 - the worker would end of it, and the training with it
            return Answer(error=str(error) or type(error).__name__)

    def do_introduce(self, env: Any) -> Answer:
        """Say what the environment is."""
        return Answer(kind=kind_of(env), name=name_of(env), settings=setting_names([env]), verdict=known(env))

    def do_attach(self, env: Any, verdict: Verdict | None) -> Answer:
        """Put in place what the capture of the environment needs."""
        return Answer(verdict=attach_once(env, verdict))

    def do_probe(self, env: Any) -> Answer:
        """Find out what a restore of the environment will give."""
        return Answer(verdict=verdict_on(env))

    def do_capture(self, env: Any, contents: bool) -> Answer:  # noqa: FBT001 - sent by position
        """Walk the environment and the generators of this process."""
        return Answer(state=captured(_roots(env), worker_policy(), contents=contents))

    def do_plan(self, env: Any, restore: Restore) -> Answer:
        """Lay a saved state over the environment; nothing is touched."""
        self._plan = planned(_roots(env), worker_policy(), restore)
        return Answer(differences=[(d.level, d.place, d.detail) for d in self._plan.differences])

    def do_apply(self, env: Any) -> Answer:
        """Execute the plan."""
        plan, self._plan = self._plan, None
        if plan is None:
            raise InternalError("A worker is told to restore and has no plan.")
        plan.apply()
        return Answer()


def _roots(env: Any) -> dict[str, object]:
    return {"env": env, "generators": GlobalGenerators()}


class Workers:
    """The worker processes of one SubprocVecEnv, seen from the trainer."""

    def __init__(self, venv: SubprocVecEnv) -> None:
        self._venv = venv
        venv.set_attr(AGENT, Agent())

    def ask(self, command: str, *arguments: Any, of: Sequence[int] | None = None) -> list[Answer]:
        """Have every worker, or some of them, do the same at the same time."""
        return list(self._venv.env_method(AGENT, command, *arguments, indices=of))

    def ask_one(self, worker: int, command: str, *arguments: Any) -> Answer:
        """Have one worker do something."""
        answer: Answer = self._venv.env_method(AGENT, command, *arguments, indices=[worker])[0]
        return answer

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [process.pid for process in self._venv.processes if process.pid is not None]


_workers: weakref.WeakKeyDictionary[Any, Workers] = weakref.WeakKeyDictionary()


def workers_of(venv: SubprocVecEnv) -> Workers:
    """Return the workers of `venv`; the agent is placed in them at the first call."""
    found = _workers.get(venv)
    if found is None:
        found = _workers[venv] = Workers(venv)
    return found


class WorkersCaptor:
    """Captor of SubprocVecEnv: one scope a worker."""

    def attributes(self, obj: Any) -> None:
        return None

    def capture(self, obj: Any, walk: Walk) -> dict[str, Value]:
        scopes: list[Value] = []
        for i, answer in enumerate(workers_of(obj).ask("capture", walk.contents)):
            if answer.error or answer.state is None:
                raise NotCapturable(
                    f"Environment worker {i} cannot be saved: {answer.error}.",
                    hint="Its environment holds what the error names: keep it elsewhere, or make it plain data.",
                    place=f"{walk.place}/{i}",
                )
            scopes.append(scope_of(answer.state, f"worker {i}", walk))
        return {WORKERS: List(v=scopes)}

    def plan(self, extra: dict[str, Value], obj: Any, graft: Graft) -> None:
        saved = extra.get(WORKERS)
        scopes = [scope for scope in saved.v if isinstance(scope, Scope)] if isinstance(saved, List) else []
        if len(scopes) != obj.num_envs:
            graft.error(f"{len(scopes)} workers were saved and the program has {obj.num_envs}.")
            return
        workers = workers_of(obj)
        for i, scope in enumerate(scopes):
            inside = f"{graft.place}/<{WORKERS}>/{i}"
            answer = workers.ask_one(i, "plan", restore_of(scope, inside, graft))
            if answer.error:
                graft.error(f"environment worker {i} cannot take what was saved: {answer.error}.")
            tell(answer.differences, inside, graft)
        graft.write(_apply, workers, phase=Phase.WORLD)


def _apply(workers: Workers) -> None:
    for i, answer in enumerate(workers.ask("apply")):
        if answer.error:
            raise RestoreFailed(f"Environment worker {i} could not be restored: {answer.error}.")


_captor = WorkersCaptor()


def workers_rule(obj: object) -> Captor | None:
    """Return the captor of a SubprocVecEnv, None for anything else."""
    return _captor if is_in_workers(obj) else None


def is_in_workers(venv: object) -> bool:
    """Return whether the environments of `venv` live in processes of SB3's."""
    return any(class_name(cls) == _SUBPROC for cls in type(venv).__mro__)
