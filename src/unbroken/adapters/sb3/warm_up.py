"""A trial of a restored policy before training goes on from it: some episodes, and a least mean reward.

It plays in an environment made for it, or in the training's own. The engine undoes afterwards what it did to those
(`engine.guards.warm_up`): its environment, its statistics, its generators.

Not promised: that a policy which passes is a good one; that an environment which comes back only approximately comes
back better than that. Give such a training an environment for the trial alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize, unwrap_vec_normalize

from unbroken.errors import ConfigError

if TYPE_CHECKING:
    import gymnasium
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.vec_env import VecEnv


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """Reject a checkpoint whose policy is broken: after a fall-back, or with `always` at every start that restores one.

    Args:
        episodes: so many are played.
        least: a lower mean reward rejects the checkpoint. Left out, only rewards that are no finite numbers do.
        env: an environment, or a function that makes one; left out, the training's own is used, and put back.
        always: try the newest checkpoint, too.
        deterministic: whether the policy plays without exploration.

    Raises:
        ConfigError: it plays no episode, or `least` is no number.

    >>> from unbroken.sb3 import CheckpointCallback, WarmUp
    >>> CheckpointCallback(1000, "runs", warm_up=WarmUp(episodes=10, least=50.0))  # doctest: +SKIP
    """

    episodes: int = 10
    least: float = -math.inf
    env: VecEnv | gymnasium.Env[Any, Any] | Callable[[], VecEnv | gymnasium.Env[Any, Any]] | None = None
    always: bool = False
    deterministic: bool = True

    def __post_init__(self) -> None:
        _check(self.episodes, self.least)

    def __call__(self, model: BaseAlgorithm) -> str:
        """Play, and return why the checkpoint is rejected; an empty string if it is not."""
        if self.env is None:
            rewards = self._play(model, model.get_env())
        elif hasattr(self.env, "step") and not isinstance(self.env, type):
            rewards = self._play(model, self.env)
        else:
            made = cast("Callable[[], Any]", self.env)()
            try:
                rewards = self._play(model, made)
            finally:
                made.close()
        mean = float(np.mean(rewards))
        if not math.isfinite(mean):
            return f"the rewards of {self.episodes} episodes are no finite numbers"
        if mean < self.least:
            return f"a mean reward of {mean:g} over {self.episodes} episodes, and {self.least:g} is the least"
        return ""

    def _play(self, model: BaseAlgorithm, env: Any) -> list[float]:
        statistics = unwrap_vec_normalize(env) if hasattr(env, "num_envs") else None
        before = _frozen(statistics)
        try:
            rewards, _ = evaluate_policy(
                model,
                env,
                n_eval_episodes=self.episodes,
                deterministic=self.deterministic,
                return_episode_rewards=True,
                warn=False,
            )
        finally:
            if statistics is not None and before is not None:
                statistics.training, statistics.norm_reward = before
        return cast("list[float]", rewards)


def _check(episodes: object, least: object) -> None:
    if isinstance(episodes, bool) or not isinstance(episodes, int) or episodes < 1:
        raise ConfigError(
            f"A warm-up plays at least one episode, not {episodes!r}.", hint="Write WarmUp(episodes=10)."
        )
    if isinstance(least, bool) or not isinstance(least, (int, float)) or math.isnan(least):
        raise ConfigError(
            f"least must be a mean reward, not {least!r}.",
            hint="Leave it out to reject nothing but rewards that are no numbers.",
        )


def _frozen(statistics: VecNormalize | None) -> tuple[bool, bool] | None:
    """Have rewards as the environment gives them, and no statistics learned from the trial; return how it was."""
    if statistics is None:
        return None
    before = statistics.training, statistics.norm_reward
    statistics.training = statistics.norm_reward = False
    return before
