"""Trainings with much around them, in child processes: evaluations, callbacks that stop, logs, a progress bar.

Run like `runner`, with orders of its own: `files` is the directory for everything but the checkpoints, `aged`
lets the training look as if it had begun so many seconds ago.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    EvalCallback,
    EveryNTimesteps,
    LogEveryNTimesteps,
    ProgressBarCallback,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnNoModelImprovement,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecNormalize

from tests.adapters.sb3 import runner
from tests.adapters.sb3.trainings import small, weights
from unbroken.sb3 import CheckpointCallback


class Marks(BaseCallback):
    """Notes at which steps it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []

    def _on_step(self) -> bool:
        self.steps.append(self.num_timesteps)
        return True


class Others(BaseCallback):
    """Has worlds of its own in every place where a callback can have them, a second training among them."""

    def __init__(self) -> None:
        super().__init__()
        self.worlds = [lander(1), {"deep": lander(2)}]
        self.alone = lander(3)
        self.look = looking_at(lander(4))
        options = small(learning_starts=4, buffer_size=40, batch_size=8)
        self.second = DQN("MlpPolicy", lander(5), **options)
        self.seen: list[float] = []

    def _on_training_start(self) -> None:
        for number, world in enumerate(self._mine()):
            world.reset(seed=number)

    def _mine(self) -> list[Any]:
        first, second = self.worlds
        return [first, second["deep"], self.alone]

    def _on_step(self) -> bool:
        if self.n_calls % 4 == 0:
            self.seen += [moved(world) for world in self._mine()] + [self.look()]
        if self.n_calls % 32 == 0:
            self.second.learn(8, reset_num_timesteps=False)
            self.seen += self.second.predict(np.zeros(8, np.float32))[0].ravel().tolist()
        return True


def lander(number: int) -> Any:
    world: Any = gymnasium.make("LunarLander-v3", max_episode_steps=25)
    world.reset(seed=number)
    return world


def moved(world: Any) -> float:
    observation, reward, ended, cut, _ = world.step(2)
    if ended or cut:
        world.reset()
    return float(observation.sum() + reward)


def looking_at(world: Any) -> Callable[[], float]:
    def look() -> float:
        return moved(world)

    return look


class Aged(BaseCallback):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def _on_training_start(self) -> None:
        self.model.start_time -= self.seconds * 1e9

    def _on_step(self) -> bool:
        return True


def world(n_envs: int = 2) -> Any:
    return VecNormalize(make_vec_env("CartPole-v1", n_envs=n_envs, seed=0), clip_obs=5.0)


def evaluation(files: Path, *, stops: int = 99, every: int = 25) -> EvalCallback:
    return EvalCallback(
        VecNormalize(make_vec_env("CartPole-v1", seed=77), clip_obs=5.0, training=False),
        callback_on_new_best=StopTrainingOnRewardThreshold(1000.0),
        callback_after_eval=StopTrainingOnNoModelImprovement(stops, min_evals=1),
        eval_freq=every, n_eval_episodes=2, deterministic=False, verbose=0,
        best_model_save_path=str(files / "best"), log_path=str(files),
    )  # fmt: skip


def ppo(files: Path) -> Any:
    model = PPO("MlpPolicy", world(), n_steps=32, batch_size=32, n_epochs=2, **small())
    model.set_logger(configure(str(files), ["csv", "json", "log", "tensorboard"]))
    return model


def dqn(files: Path) -> Any:
    model = DQN(
        "MlpPolicy", world(), learning_starts=40, buffer_size=90, train_freq=4, target_update_interval=30,
        **small(),
    )  # fmt: skip
    model.set_logger(configure(str(files), ["csv", "json", "log"]))
    return model


def first(ours: BaseCallback, marks: Marks, files: Path) -> list[BaseCallback]:
    return [
        ours, evaluation(files), EveryNTimesteps(30, marks), StopTrainingOnMaxEpisodes(500), ProgressBarCallback(),
    ]  # fmt: skip


def last(ours: BaseCallback, marks: Marks, files: Path) -> list[BaseCallback]:
    return list(reversed(first(ours, marks, files)))


def nested(ours: BaseCallback, marks: Marks, files: Path) -> list[BaseCallback]:
    evaluates, events, episodes, bar = first(ours, marks, files)[1:]
    return [
        CallbackList([bar, CallbackList([evaluates, CallbackList([ours])])]),
        CallbackList([episodes, events]),
    ]


def impatient(ours: BaseCallback, marks: Marks, files: Path) -> list[BaseCallback]:
    return [evaluation(files, stops=2, every=20), EveryNTimesteps(30, marks), ours]


def few_episodes(ours: BaseCallback, marks: Marks, files: Path) -> list[BaseCallback]:
    return [StopTrainingOnMaxEpisodes(9), EveryNTimesteps(30, marks), ours]


def logging(ours: BaseCallback, marks: Marks, files: Path) -> list[BaseCallback]:
    return [LogEveryNTimesteps(37), EveryNTimesteps(30, marks), ours]


def others(ours: BaseCallback, marks: Marks, files: Path) -> list[BaseCallback]:
    return [Others(), ours]


MODELS: dict[str, Callable[[Path], Any]] = {"ppo": ppo, "dqn": dqn}
CALLBACKS: dict[str, Callable[[BaseCallback, Marks, Path], list[BaseCallback]]] = {
    "first": first, "last": last, "nested": nested, "impatient": impatient, "few episodes": few_episodes,
    "logging": logging, "others": others,
}  # fmt: skip


def train(order: dict[str, Any]) -> None:
    runner.leave_cold(order.get("cold", []))
    files = Path(order["files"])
    model = MODELS[order["model"]](files)
    ours, marks = CheckpointCallback(order["save_freq"], order["root"], "job"), Marks()
    callbacks = CALLBACKS[order["callbacks"]](ours, marks, files)
    if order.get("kill"):
        callbacks.append(runner.Killer(order["kill"], ours))
    if order.get("aged"):
        callbacks.append(Aged(order["aged"]))
    model.learn(order["steps"], callback=callbacks, log_interval=order.get("log_interval", 1))
    model.logger.close()
    bars = [callback.pbar for callback in runner_below(callbacks)]
    result = {
        "weights": {name: value.hex() for name, value in weights(model).items()},
        "draws": runner.draws(model),
        "steps": model.num_timesteps,
        "marks": marks.steps,
        "bars": [[bar.n, bar.total] for bar in bars],
        "episodes": [[info["r"], info["l"]] for info in model.ep_info_buffer],
    }
    for other in callbacks:
        if isinstance(other, Others):
            result["seen"] = other.seen
            result["second"] = {name: value.hex() for name, value in weights(other.second).items()}
    Path(order["out"]).write_text(json.dumps(result, default=np.ndarray.tolist))


def runner_below(callbacks: list[BaseCallback]) -> list[ProgressBarCallback]:
    found: list[ProgressBarCallback] = []
    for callback in callbacks:
        if isinstance(callback, ProgressBarCallback):
            found.append(callback)
        elif isinstance(callback, CallbackList):
            found += runner_below(callback.callbacks)
    return found


if __name__ == "__main__":
    runner.train = train
    runner.main()
    sys.exit()
