"""How each environment is captured: what is known by name, and what has to be put in place.

An adapter calls `attach` once for each environment, right after its first reset, in the process in which
the environment lives, and walks it under `env_policy()`. Whatever was put in place is gone after `detach`.

Order, first that applies: a registered capturer; a family known by name; the verdict of a probe; the
attributes alone, declared approximate because nobody has looked. Attributes are the rule, since they hold
what outlives an episode; a replay is for what they do not show.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from unbroken.capture import ale, box2d_world, gymnasium, mujoco, numpy_random, registry, replay
from unbroken.capture.neighbours import is_own
from unbroken.capture.replay_cost import about
from unbroken.state.policy import Policy
from unbroken.types import Fidelity
from unbroken.types import How as How  # noqa: PLC0414 - it belongs to a verdict, and is taken from here


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a restore of one environment gives, how, and why it is not exact where it is not."""

    how: How
    fidelity: Fidelity = Fidelity.EXACT
    reason: str = ""
    most_steps: int = field(default=0, compare=False)
    """Steps that a replay takes at most; 0 if nobody knows, or if nothing is replayed."""
    step_seconds: float = field(default=0.0, compare=False)
    """What one of them takes, as measured when the environment was looked at; 0 if it was not."""

    @property
    def cost(self) -> str:
        """What a restore by replay may cost, for people; empty if nobody knows."""
        if self.most_steps and self.step_seconds:
            return f"a restore replays up to {self.most_steps:,} steps, {about(self.most_steps * self.step_seconds)}"
        if self.most_steps:
            return f"a restore replays up to {self.most_steps:,} steps"
        if self.step_seconds:
            return f"a restore replays the episode, {about(1000 * self.step_seconds)} for 1,000 steps"
        return ""

    def __str__(self) -> str:
        text = f"{self.fidelity.value}, by {self.how.value}"
        if self.cost:
            text += f" ({self.cost})"
        return f"{text}: {self.reason}" if self.reason else text


_FAMILIES: tuple[tuple[str, How], ...] = (
    ("gymnasium.envs.classic_control.", How.STRUCTURAL),
    ("gymnasium.envs.toy_text.", How.STRUCTURAL),
    ("minigrid.", How.STRUCTURAL),
    ("gymnasium.envs.mujoco.", How.CAPTURER),
    ("ale_py.env", How.CAPTURER),
    ("gymnasium.envs.box2d.lunar_lander", How.REPLAY),
    ("gymnasium.envs.box2d.car_racing", How.REPLAY),
    ("gymnasium.envs.box2d.bipedal_walker", How.WHOLE_REPLAY),
)
_WRAPPERS = (
    "gymnasium.wrappers.", "stable_baselines3.common.", "minigrid.wrappers", "sb3_contrib.common.",
    "unbroken.capture.fresh_world", "rl_zoo3.",
)  # fmt: skip
_UNREACHABLE = {
    "ale_py.vector_env:AtariVectorEnv": "its emulators are out of reach in a C++ object",
    "supersuit.vector.multiproc_vec:ProcConcatVec": "its workers take no orders but reset, step, render and close"
    " (num_cpus=1 keeps the environments in the trainer's process)",
}


def env_policy() -> Policy:
    """Return everything a walk needs to know of environments: registered capturers before all others."""
    return numpy_random.POLICY.merged(
        gymnasium.POLICY, mujoco.POLICY, ale.POLICY, registry.POLICY, replay.POLICY
    )


def chain(env: Any) -> Iterator[Any]:
    """Yield an environment's wrappers from the outside in, and the base environment last."""
    while True:
        yield env
        inner = vars(env).get("env")
        if inner is None or inner is env:
            return
        env = inner


def is_wrapper_of_library(layer: Any) -> bool:
    """Whether a wrapper is known by name to keep everything in its attributes.

    One that calls a function of the program (`TransformReward`) is not: the function may keep something anywhere.
    """
    return type(layer).__module__.startswith(_WRAPPERS) and not _is_the_programs(vars(layer).get("func"))


def _is_the_programs(function: object) -> bool:
    function = getattr(function, "func", function)  # of a partial
    return is_own(getattr(function, "__module__", None) or type(function).__module__)


def known(env: Any) -> Verdict | None:
    """Return the verdict on an environment of a known family, else None. Runs nothing of it."""
    *wrappers, base = chain(env)
    names = {f"{cls.__module__}:{cls.__qualname__}" for layer in (env, base) for cls in type(layer).__mro__}
    for name, why in _UNREACHABLE.items():
        if name in names:
            return Verdict(How.NOTHING, Fidelity.NOT_CAPTURED, f"{name.partition(':')[2]}: {why}")
    if not all(map(is_wrapper_of_library, wrappers)):
        return None
    if registry.registered(base) is not None:
        return None  # what a person has written can be tried
    module = type(base).__module__
    if any(map(box2d_world.renews, wrappers)):
        return Verdict(How.REPLAY)  # no episode follows from the one before
    return next((Verdict(how) for prefix, how in _FAMILIES if module.startswith(prefix)), None)


class Attachment(Protocol):
    """What `attach` has put in place."""

    verdict: Verdict

    def detach(self) -> None:
        """Leave the environment as it was found."""
        ...


class _Recorder(Protocol):
    def install(self) -> None: ...

    def remove(self) -> None: ...


class _Attached:
    def __init__(self, verdict: Verdict, recorders: list[_Recorder]) -> None:
        self.verdict = verdict
        self._recorders = recorders
        for recorder in recorders:
            recorder.install()

    def detach(self) -> None:
        for recorder in reversed(self._recorders):
            recorder.remove()
        self._recorders.clear()


def _worst(verdicts: list[Verdict]) -> Verdict:
    order = list(Fidelity)
    return max(verdicts, key=lambda v: order.index(v.fidelity), default=Verdict(How.STRUCTURAL))


def attach(env: Any, *, verdict: Verdict | None = None) -> Attachment:
    """Put in place what the capture of `env` needs (a wrapper chain, or a vector of them).

    To be called after the first reset and before anything is captured. `verdict` is what a probe found,
    of this environment or of another one of its kind; what is known of a family by name stands above it.
    Without either, an environment is walked and declared approximate.
    """
    members = vars(env).get("envs")
    if isinstance(members, (list, tuple)) and members:
        every: list[Attachment] = [attach(member, verdict=verdict) for member in members]
        return _Several(_worst([one.verdict for one in every]), every)
    vouched = Verdict(How.CAPTURER) if registry.registered(list(chain(env))[-1]) is not None else None
    return put_in(env, known(env) or verdict or vouched or unseen(env))


def put_in(env: Any, verdict: Verdict) -> Attachment:
    """Put in place what a single environment needs under this verdict, whatever family it is of."""
    *wrappers, base = chain(env)
    if registry.registered(base) is not None:
        return _Attached(verdict, [])
    if ale.is_atari(base):
        return _Attached(verdict, [ale.StickyTracker(base)])
    if verdict.how not in (How.REPLAY, How.WHOLE_REPLAY):
        return _Attached(verdict, [])
    whole = verdict.how is How.WHOLE_REPLAY
    recorder = replay.Recorder(
        base,
        whole=whole,
        approximate=verdict.reason if verdict.fidelity is not Fidelity.EXACT else "",
        prepare=box2d_world.renew if any(map(box2d_world.renews, wrappers)) else None,
        paced=known(env) is not None,
    )
    attached = _Attached(verdict, [recorder])
    attached.verdict = replace(
        verdict,
        most_steps=recorder.ceiling if whole else _limit(env),
        step_seconds=verdict.step_seconds or recorder.step_seconds,
    )
    return attached


def _limit(env: Any) -> int:
    """Return the steps after which a wrapper ends an episode; 0 if none does."""
    limits = [vars(layer).get("_max_episode_steps") for layer in chain(env)]
    return min((limit for limit in limits if isinstance(limit, int)), default=0)


def unseen(env: Any) -> Verdict:
    """Return the verdict on an environment at which nobody has looked."""
    base = list(chain(env))[-1]
    return Verdict(
        How.STRUCTURAL,
        Fidelity.APPROXIMATE,
        f"{type(base).__qualname__} was not probed: state outside of its attributes would be lost",
    )


class _Several:
    def __init__(self, verdict: Verdict, parts: list[Attachment]) -> None:
        self.verdict = verdict
        self._parts = parts

    def detach(self) -> None:
        for part in reversed(self._parts):
            part.detach()
        self._parts.clear()
