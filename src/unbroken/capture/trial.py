"""The experiment behind a probe: does a restored environment go on as the original does?

Two environments are built; one is stepped into the middle of an episode and captured; the state is laid
over the other one, which was elsewhere; then both take the same actions, across a reset. Every bit of what
they return has to agree. Comparing states would prove nothing: a copy that lies compares equal.

Meant for a process of its own, in which the clock may be set and the environment may leave what it wants.
Not promised: state that shows only after more steps than are taken here.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from unbroken.capture.environments import How, Verdict, attach, env_policy, known
from unbroken.capture.tape import Witness
from unbroken.errors import UnbrokenError
from unbroken.state.graft import plan
from unbroken.state.walk import capture
from unbroken.types import Fidelity

BEFORE, AFTER, RESET_AT = 25, 60, 40
"""Steps before the capture, steps compared, and when a reset comes in between."""


class Clock:
    """The process's clock, set ahead at will; notes which modules read it. Only for a probe's process."""

    NAMES = ("time", "monotonic", "perf_counter")

    def __init__(self) -> None:
        self.readers: set[str] = set()
        self._ahead = 0.0

    def install(self) -> None:
        for name in self.NAMES:
            setattr(time, name, self._reading(getattr(time, name)))
            if name != "time":
                setattr(time, f"{name}_ns", self._reading(getattr(time, f"{name}_ns"), scale=10**9))
        time.time_ns = self._reading(time.time_ns, scale=10**9)

    def advance(self) -> None:
        """Set the clock ahead by a day and a bit, so that whoever depends on it shows it."""
        self._ahead += 90_061.5

    def _reading(self, original: Callable[[], Any], scale: int = 1) -> Callable[[], Any]:
        def read() -> Any:
            self.readers.add(str(sys._getframe(1).f_globals.get("__name__", "?")))
            value = original()
            return value + type(value)(self._ahead * scale)

        return read


def _reset(env: Any, seed: int | None = None) -> str:
    witness = Witness()
    witness.see(env.reset(seed=seed)[0])
    return witness.hexdigest()


def _follow(env: Any, actions: list[Any]) -> list[tuple[str, str]]:
    """Step through the actions and return what came back, as (what, digest) in order."""
    seen: list[tuple[str, str]] = []
    for index, action in enumerate(actions):
        names = ("observation", "reward", "end of the episode", "truncation")
        result = env.step(action)
        for name, value in zip(names, result, strict=False):
            witness = Witness()
            witness.see(value)
            seen.append((f"{name} of step {index + 1}", witness.hexdigest()))
        if result[2] or result[3] or index == RESET_AT:
            seen.append((f"observation after the reset at step {index + 1}", _reset(env)))
    return seen


def _generators() -> Callable[[], None]:
    """Remember the process-wide generators, which a checkpoint holds; return what brings them back."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the one of the process
    torch: Any = sys.modules.get("torch")
    tensor: Any = torch.get_rng_state() if torch is not None else None

    def put_back() -> None:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(tensor)

    return put_back


def compare(make: Callable[[], Any], how: How, clock: Clock | None = None) -> str:
    """Try one way of capturing. Return what differed, or an empty text if nothing did."""
    policy = env_policy()
    one, other = make(), make()
    try:
        one.action_space.seed(5)
        _reset(one, seed=11)
        _reset(other, seed=12)
        for _ in range(3):
            other.step(one.action_space.sample())
        attached = [attach(env, verdict=Verdict(how)) for env in (one, other)]
        _reset(one)
        for _ in range(BEFORE):
            result = one.step(one.action_space.sample())
            if result[2] or result[3]:
                _reset(one)
        actions = [one.action_space.sample() for _ in range(AFTER)]
        snapshot = capture({"env": one}, policy)
        put_back = _generators()
        expected = _follow(one, actions)
        if clock is not None:
            clock.advance()
        plan(snapshot, {"env": other}, policy).apply()
        put_back()
        found = _follow(other, actions)
        for attachment in attached:
            attachment.detach()
        lost = [note for note in snapshot.notes if note.kind == "approximate"]
        if lost:
            return lost[0].detail
        for (what, a), (_, b) in zip(expected, found, strict=False):
            if a != b:
                return f"the {what} differs"
        return "" if len(expected) == len(found) else "the episodes end at different steps"
    finally:
        one.close()
        other.close()


def judge(make: Callable[[], Any], clock: Clock | None = None) -> Verdict:
    """Return the verdict on the environments that `make` builds: the first way that holds."""
    env = make()
    sure = known(env)
    env.close()
    first = sure.how if sure is not None else How.STRUCTURAL
    reasons: list[str] = []
    for how in dict.fromkeys((first, How.REPLAY, How.WHOLE_REPLAY)):
        if clock is not None:
            clock.readers.clear()
        try:
            difference = compare(make, how, clock)
        except UnbrokenError as error:
            difference = str(error)
        except Exception as error:  # noqa: BLE001 - an environment may raise anything; that is the finding
            difference = f"{type(error).__name__}: {error}"
        if not difference:
            return Verdict(how)
        reasons.append(difference)
        readers = sorted(r for r in (clock.readers if clock else ()) if not r.startswith("unbroken."))
        if readers:
            reason = f"it reads the clock (in {', '.join(readers)}), and {difference}"
            return Verdict(How.STRUCTURAL, Fidelity.APPROXIMATE, reason)
    return Verdict(
        How.SEEDS, Fidelity.APPROXIMATE, f"it keeps state out of reach: after a restore {reasons[0]}"
    )
