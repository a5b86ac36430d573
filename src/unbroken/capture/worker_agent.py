"""What is placed in a process that holds an environment for somebody else's vector, and works there.

The agent is an attribute of the environment and is called through it, with the vector's own commands. It
walks the environment, the global generators of that process and the local variables of the worker's loop;
the answer travels back as a record. What a vector's workers have in common is here; where the loop is and
what it remembers says a subclass.

An error is an answer, never an exception: the worker would die of it, and the training with it.

Not promised: workers that keep something of the run in a place that the subclass does not name.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, ClassVar

from unbroken.capture import registry
from unbroken.capture.attaching import attach_once, detach, kind_of, name_of, seed_of, verdict_on
from unbroken.capture.elsewhere import Captured, Restore, captured, in_one_document, planned
from unbroken.capture.environments import Verdict, chain, known
from unbroken.capture.generators import GlobalGenerators
from unbroken.capture.progress import progress_of
from unbroken.capture.replay_cost import Cost, tellers, total
from unbroken.capture.source import policy_of_loaded, setting_names
from unbroken.capture.worker_locals import LoopLocals
from unbroken.capture.worker_signals import Deference
from unbroken.errors import InternalError
from unbroken.repo.process import current
from unbroken.state.graft import Graft
from unbroken.state.policy import Policy

AGENT = "_unbroken_agent"
"""Attribute of an environment in a worker: the agent."""
ERRAND = "_unbroken_errand"
"""Attribute of an environment in a worker: what the agent is to do next, where each has another task."""


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
    seed: int | None = None
    """What the environment was last reset with."""
    progress: dict[str, int] = field(default_factory=dict[str, int])
    """How far its episodes are; see `progress_of`."""
    cost: Cost = field(default_factory=Cost)
    """What a restore would take in this worker."""


class Agent:
    """Runs in the worker. A plan waits in it to be applied."""

    loop: ClassVar[str] = ""
    """Name of the worker's function, in whose frame the environment is `env`."""
    remembered: ClassVar[Sequence[str]] = ()
    """Local variables of that function that outlive a command."""

    def __init__(self) -> None:
        self._captors = _packed_captors()
        self._trainer = current()  # it is made there, and sent
        self._deference: Deference | None = None
        self._plan: tuple[Graft, LoopLocals] | None = None

    def policy(self) -> Policy:
        """Return the rules for what lives in the worker: everything in one document."""
        return in_one_document(policy_of_loaded())

    def __call__(self, command: str, *arguments: Any) -> Answer:
        frame = sys._getframe(1)
        if frame.f_code.co_name != self.loop or "env" not in frame.f_locals:
            return Answer(error=f"it is called by {frame.f_code.co_name}, and not by the worker it knows")
        try:
            self._adopt()
            task = _errand(frame.f_locals["env"]) if command == "errand" else (command, *arguments)
            return getattr(self, f"do_{task[0]}")(frame, *task[1:])  # type: ignore[no-any-return]
        except Exception as error:  # noqa: BLE001 - the worker would end of it, and the training with it
            return Answer(error=str(error) or type(error).__name__)

    def do_nothing(self, frame: FrameType) -> Answer:
        """Let the others work."""
        return Answer()

    def do_introduce(self, frame: FrameType) -> Answer:
        """Say what the environment is. From here on, signals are the trainer's to answer."""
        self._deference = self._deference or Deference(self._trainer)
        self._deference.begin()
        env = frame.f_locals["env"]
        return Answer(kind=kind_of(env), name=name_of(env), settings=setting_names([env]), verdict=known(env))

    def do_attach(self, frame: FrameType, verdict: Verdict | None) -> Answer:
        """Put in place what the capture of the environment needs."""
        return Answer(verdict=attach_once(frame.f_locals["env"], verdict))

    def do_detach(self, frame: FrameType) -> Answer:
        """Leave the environment as it was found."""
        detach(frame.f_locals["env"])
        if self._deference is not None:
            self._deference.end()
        return Answer()

    def do_probe(self, frame: FrameType) -> Answer:
        """Find out what a restore of the environment will give."""
        return Answer(verdict=verdict_on(frame.f_locals["env"]))

    def do_capture(self, frame: FrameType, contents: bool) -> Answer:  # noqa: FBT001 - sent by position
        """Walk the environment, the generators of this process and what the loop remembers."""
        roots = self._roots(frame, LoopLocals(frame, self.remembered))
        state = captured(roots, self.policy(), contents=contents)
        env = frame.f_locals["env"]
        return Answer(state=state, seed=seed_of(env), progress=progress_of(env))

    def do_cost(self, frame: FrameType) -> Answer:
        """Say what a restore of this moment would take by replay."""
        return Answer(cost=total(tellers(chain(frame.f_locals["env"]))))

    def do_plan(self, frame: FrameType, restore: Restore) -> Answer:
        """Lay a saved state over the environment; nothing is touched."""
        held = LoopLocals(frame, self.remembered)
        graft = planned(self._roots(frame, held), self.policy(), restore)
        self._plan = graft, held
        return Answer(differences=[(d.level, d.place, d.detail) for d in graft.differences])

    def do_apply(self, frame: FrameType) -> Answer:
        """Execute the plan."""
        plan, self._plan = self._plan, None
        if plan is None:
            raise InternalError("A worker is told to restore and has no plan.")
        graft, held = plan
        graft.apply()
        held.write_into(frame)
        return Answer()

    def _roots(self, frame: FrameType, held: LoopLocals) -> dict[str, object]:
        return {"env": frame.f_locals["env"], "generators": GlobalGenerators(), "loop": held}

    def _adopt(self) -> None:
        packed, self._captors = self._captors, b""
        if packed:
            registry.adopt(pickle.loads(packed))  # noqa: S301 - from the trainer that started this process


def _errand(env: Any) -> tuple[Any, ...]:
    """Return what this worker alone is to do: a command and its arguments."""
    task: tuple[Any, ...] | None = env.get_wrapper_attr(ERRAND)
    env.set_wrapper_attr(ERRAND, None)  # it may hold the whole state of an environment
    return task or ("nothing",)


def _packed_captors() -> bytes:
    """Return what this process has registered, for a worker that was started without it."""
    captors = registry.every()
    if not captors:
        return b""
    cloudpickle: Any = importlib.import_module("cloudpickle")  # comes with gymnasium
    try:
        packed: bytes = cloudpickle.dumps(captors)
    except Exception:  # noqa: BLE001 - whatever pickling a user's function raises
        # A forked worker has it already. In another one the environment is tried out like any, and the verdict
        # says what came of it.
        return b""
    return packed
