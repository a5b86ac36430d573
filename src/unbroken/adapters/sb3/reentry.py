"""One rollout continued in the middle.

`collect_rollouts` always begins a rollout. To continue one, it is called for the rest only, and what it
does at its beginning, and had done before the checkpoint, is left out once: emptying the rollout
buffer, drawing exploration noise, telling the callbacks. All of it through instance attributes that
are gone before the first step. What it reports at the end is completed by the part done before.

Not promised: a rollout whose length was changed to less than what is done already; that is judged
before anything is restored.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import RolloutReturn, TrainFreq, TrainFrequencyUnit

from unbroken.adapters.sb3.hooks import Muted
from unbroken.adapters.sb3.position import Position
from unbroken.capture.hooks import Hook
from unbroken.errors import InternalError, StateMismatch

COUNTED: Final = {"n_steps": "steps", "num_collected_steps": "steps", "num_collected_episodes": "episodes"}
"""Local variables of `collect_rollouts` that count from the rollout's begin; callbacks can read them."""


class ShiftedFrequency(int):
    """The frequency of gSDE's noise, for a loop that counts from 0 when `shift` steps are done.

    The loop tests ``n % frequency == 0``; everything else about it is the plain number, and it copies
    and pickles as one.
    """

    shift = 0

    @classmethod
    def of(cls, frequency: int, shift: int) -> ShiftedFrequency:
        """Return the frequency for a loop that has `shift` steps behind it."""
        self = cls(frequency)
        self.shift = shift
        return self

    def __rmod__(self, steps: int) -> int:
        return (steps + self.shift) % int(self)

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


def reenter(
    model: OnPolicyAlgorithm | OffPolicyAlgorithm,
    original: Callable[..., Any],
    call: inspect.BoundArguments,
    position: Position,
) -> Any:
    """Call `original` for the rest of the rollout that `position` is in, and complete its result.

    `model` and everything around it, the global generators included, are in the state of `position`.
    """
    arguments = call.arguments
    steps = position.steps  # the position moves on with the rollout
    episodes = model._episode_num - position.episodes_before
    muted = [Muted(arguments["callback"], "on_rollout_start")]
    shown: dict[str, object] = {}
    if isinstance(model, OffPolicyAlgorithm):
        shown["train_freq"] = arguments["train_freq"]
        arguments["train_freq"] = _rest(arguments["train_freq"], steps, episodes)
    else:
        shown["n_rollout_steps"] = arguments["n_rollout_steps"]
        arguments["n_rollout_steps"] -= steps
        muted.append(Muted(arguments["rollout_buffer"], "reset"))
    with _noise(model, steps), _counts(arguments["callback"], steps, episodes, shown):
        try:
            result = original(*call.args, **call.kwargs)
        finally:
            for method in muted:
                method.remove()
    if not isinstance(result, RolloutReturn):
        return result
    return RolloutReturn(
        result.episode_timesteps + steps * model.n_envs,
        result.n_episodes + episodes,
        result.continue_training,
    )


def result_of(model: OnPolicyAlgorithm | OffPolicyAlgorithm, position: Position) -> bool | RolloutReturn:
    """Return what `collect_rollouts` has returned for the complete rollout that `position` stands after.

    Raises StateMismatch where the buffer that it filled is not there any more.
    """
    if isinstance(model, OffPolicyAlgorithm):
        episodes = model._episode_num - position.episodes_before
        return RolloutReturn(position.steps * model.n_envs, episodes, continue_training=True)
    if not model.rollout_buffer.full:
        raise StateMismatch(
            "The checkpoint lies between a rollout and its training, and the rollout buffer is not the same.",
            hint="Go on with the former n_steps; it may change at a checkpoint between two rollouts.",
        )
    return True


def _rest(frequency: TrainFreq, steps: int, episodes: int) -> TrainFreq:
    done = steps if frequency.unit == TrainFrequencyUnit.STEP else episodes
    if done >= frequency.frequency:
        raise InternalError(f"A rollout of {frequency} cannot continue after {done}.")
    return TrainFreq(frequency.frequency - done, frequency.unit)


@contextmanager
def _noise(model: OnPolicyAlgorithm | OffPolicyAlgorithm, steps: int) -> Generator[None]:
    """Leave out the noise that was drawn before the checkpoint and keep the phase of the rest."""
    if not model.use_sde:
        yield
        return
    frequency = model.sde_sample_freq
    # Drawn at the begin of every rollout, and again on top of a step whose turn it is.
    drawn = 1 + (frequency > 0 and steps % frequency == 0)
    sampler = model.actor if isinstance(model, OffPolicyAlgorithm) else model.policy
    muted = Muted(sampler, "reset_noise", times=drawn)
    model.sde_sample_freq = ShiftedFrequency.of(frequency, steps) if frequency > 0 else frequency
    try:
        yield
    finally:
        muted.remove()
        model.sde_sample_freq = frequency


@contextmanager
def _counts(callback: BaseCallback, steps: int, episodes: int, shown: dict[str, object]) -> Generator[None]:
    """Let callbacks see the loop's local counts as if the rollout had not been interrupted."""
    done = {"steps": steps, "episodes": episodes}

    def update(locals_: dict[str, Any]) -> None:
        counted = {n: locals_[n] + done[what] for n, what in COUNTED.items() if n in locals_}
        hook.original({**locals_, **shown, **counted})

    hook = Hook(callback, "update_locals", update, keeper=callback)
    hook.install()
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def plain_frequency(model: BaseAlgorithm) -> Generator[None]:
    """Let a capture see the frequency of noise as the plain number that it is."""
    frequency = model.sde_sample_freq
    model.sde_sample_freq = int(frequency)
    try:
        yield
    finally:
        model.sde_sample_freq = frequency
