"""Trainings that ask for a save where there is no clean point, and are killed there; for tests.

Imports once and forks for every order, one JSON object a line, as another interpreter than that of the test.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from sb3_contrib import ARS, MaskablePPO, RecurrentPPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback, EveryNTimesteps
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import KVWriter, Logger, configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import SubprocVecEnv, VecNormalize

from tests.adapters.sb3.trainings import bits, dqn_her, small
from unbroken.adapters.sb3.source import TrainingSource
from unbroken.sb3 import CheckpointCallback
from unbroken.state.pickles import Trust


class Cluster:
    """Asks for a save and kills, at a call of `look`."""

    def __init__(self) -> None:
        self.at = 0
        self.calls = 0
        self.ours: CheckpointCallback | None = None
        self.signals: list[int] = []
        """Sent instead of asking and killing; what they end, they end."""
        self.files = ""
        """Where a training writes everything but its checkpoints, if it writes anything."""

    def look(self) -> bool:
        self.calls += 1
        return self.calls == self.at


CLUSTER = Cluster()


def ask_and_die() -> None:
    """At its time: ask from another thread, as a monitor of a cluster does, let the save end, and be killed."""
    ours = CLUSTER.ours
    if not CLUSTER.look() or ours is None:
        return
    if CLUSTER.signals:
        for number in CLUSTER.signals:
            os.kill(os.getpid(), number)
        return
    asking = threading.Thread(target=ours.request_save, args=("the cluster asks",))
    asking.start()
    asking.join()
    session = ours._session
    assert session is not None and session._engine is not None
    session._engine._writer.wait()
    os.kill(os.getpid(), signal.SIGKILL)


class Asks(BaseCallback):
    def _on_step(self) -> bool:
        ask_and_die()
        return True


def asking(algorithm: type[Any]) -> type[Any]:
    """Return the algorithm, asking at the end of a `train()`, when everything has changed."""

    def train(self: Any, *args: Any, **kwargs: Any) -> None:
        algorithm.train(self, *args, **kwargs)
        ask_and_die()

    return type(f"Asking{algorithm.__name__}", (algorithm,), {"train": train, "__module__": __name__})


AskingPPO, AskingSAC, AskingDQN = asking(PPO), asking(SAC), asking(DQN)
AskingRecurrentPPO, AskingMaskablePPO = asking(RecurrentPPO), asking(MaskablePPO)


def rollouts(**more: Any) -> dict[str, Any]:
    return small(n_steps=32, batch_size=32, n_epochs=2, **more)


def ppo() -> tuple[Any, list[BaseCallback]]:
    return AskingPPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs=2, seed=0), **rollouts()), []


class AskingAdam(torch.optim.Adam):
    """Asks between a gradient and what is made of it."""

    def step(self, closure: Any = None) -> Any:
        ask_and_die()
        return super().step(closure)


def ppo_in_optimizer() -> tuple[Any, list[BaseCallback]]:
    options = rollouts()
    options["policy_kwargs"] |= {"optimizer_class": AskingAdam}
    return PPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs=2, seed=0), **options), []


def ppo_gsde() -> tuple[Any, list[BaseCallback]]:
    env = VecNormalize(make_vec_env("Pendulum-v1", n_envs=2, seed=0))
    return AskingPPO("MlpPolicy", env, use_sde=True, sde_sample_freq=5, **rollouts()), []


def recurrent() -> tuple[Any, list[BaseCallback]]:
    env = make_vec_env("CartPole-v1", n_envs=2, seed=0)
    options = rollouts()
    options["policy_kwargs"] |= {"lstm_hidden_size": 8}
    return AskingRecurrentPPO("MlpLstmPolicy", env, **options), []


def maskable() -> tuple[Any, list[BaseCallback]]:
    env = make_vec_env(
        InvalidActionEnvDiscrete, n_envs=2, seed=0, env_kwargs={"dim": 20, "n_invalid_actions": 10}
    )
    return AskingMaskablePPO("MlpPolicy", env, **rollouts()), []


def sac() -> tuple[Any, list[BaseCallback]]:
    env = make_vec_env("Pendulum-v1", n_envs=2, seed=0, env_kwargs={"max_episode_steps": 20})
    return AskingSAC(
        "MlpPolicy", env, learning_starts=40, buffer_size=500, batch_size=32, use_sde=True, sde_sample_freq=5,
        train_freq=8, gradient_steps=-1, **small(),
    ), []  # fmt: skip


def dqn_episodic() -> tuple[Any, list[BaseCallback]]:
    env = make_vec_env("CartPole-v1", n_envs=1, seed=0)
    return AskingDQN(
        "MlpPolicy", env, learning_starts=40, buffer_size=90, train_freq=(2, "episode"), gradient_steps=3, **small()
    ), []  # fmt: skip


def evaluated() -> tuple[Any, list[BaseCallback]]:
    env = make_vec_env("CartPole-v1", n_envs=2, seed=0)
    test: Monitor[Any, Any] = Monitor(gymnasium.make("CartPole-v1"))
    test.reset(seed=5)
    evaluation = EvalCallback(test, eval_freq=2, n_eval_episodes=2, callback_after_eval=Asks(), verbose=0)
    return PPO("MlpPolicy", env, **rollouts()), [EveryNTimesteps(46, evaluation)]


def evaluates(kind: type[Any], env: Any) -> EvalCallback:
    """Return a callback that leaves files, and asks and dies at the end of an evaluation."""
    env.seed(77)
    found: EvalCallback = kind(
        env, eval_freq=23, n_eval_episodes=3, callback_after_eval=Asks(), deterministic=False, verbose=0,
        log_path=CLUSTER.files, best_model_save_path=CLUSTER.files, warn=False,
    )  # fmt: skip
    return found


def evaluated_in_workers() -> tuple[Any, list[BaseCallback]]:
    test = make_vec_env(
        "CartPole-v1", n_envs=2, seed=77, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": "fork"}
    )
    model = PPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs=2, seed=0), **rollouts())
    return model, [evaluates(EvalCallback, test)]


def evaluated_with_masks() -> tuple[Any, list[BaseCallback]]:
    options = {"dim": 20, "n_invalid_actions": 10}
    env, test = (
        make_vec_env(InvalidActionEnvDiscrete, n_envs=n, seed=seed, env_kwargs=options)
        for n, seed in ((2, 0), (1, 77))
    )
    return MaskablePPO("MlpPolicy", env, **rollouts()), [evaluates(MaskableEvalCallback, test)]


def evaluated_her() -> tuple[Any, list[BaseCallback]]:
    return dqn_her(), [evaluates(EvalCallback, bits(1))]


def ars() -> tuple[Any, list[BaseCallback]]:
    env = VecNormalize(make_vec_env("CartPole-v1", n_envs=2, seed=0))
    schedule = _falling
    return ARS("MlpPolicy", env, n_delta=3, n_top=2, learning_rate=schedule, delta_std=0.1, **small()), [
        Asks()
    ]


def _falling(left: float) -> float:
    return 0.05 * left


class Rows(KVWriter):
    """Logs what `learn` decides by its counts into a file that a kill leaves."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
        names = (
            "time/iterations",
            "train/iterations",
            "time/episodes",
            "rollout/ep_len_mean",
            "train/n_updates",
        )
        row = {name: float(key_values[name]) for name in names if name in key_values}
        with open(self._path, "a") as rows:
            rows.write(json.dumps([step, row]) + "\n")

    def close(self) -> None: ...


def weights(model: Any) -> dict[str, str]:
    found = {name: tensor.numpy().tobytes().hex() for name, tensor in model.policy.state_dict().items()}
    for top, state in model.get_parameters().items():
        if "optimizer" in top:
            for number, values in state["state"].items():
                found |= {f"{top}.{number}.{k}": np.asarray(v).tobytes().hex() for k, v in values.items()}
    return found


def draws(model: Any) -> dict[str, Any]:
    observations = model.env.reset()
    parts = observations if isinstance(observations, dict) else {"": observations}
    return {
        "python": random.random(),
        "numpy": np.random.random(),  # noqa: NPY002 - the global generator is what is asked
        "torch": torch.rand(1).item(),
        "action": np.asarray(model.action_space.sample()).tolist(),
        "reset": {key: part.tolist() for key, part in parts.items()},
    }


def leave_cold(places: list[str]) -> None:
    plan = TrainingSource.plan

    def cold(self: TrainingSource, saved: Any, *, keep: Any = (), trusted: Trust = False) -> Any:
        return plan(self, saved, keep=[*keep, *places], trusted=trusted)

    TrainingSource.plan = cold  # type: ignore[method-assign]


def train(order: Mapping[str, Any]) -> None:
    gymnasium.logger.min_level = gymnasium.logger.ERROR
    torch.set_num_threads(1)
    leave_cold(order.get("cold", []))
    CLUSTER.files = order["files"]
    model, callbacks = globals()[order["case"]]()
    ours = CheckpointCallback(
        order.get("save_freq", 10**6), order["root"], "job", grace=order.get("grace", 0)
    )
    CLUSTER.at, CLUSTER.ours = order.get("ask", 0), ours
    CLUSTER.signals = order.get("signals", [])
    if order.get("logs"):
        model.set_logger(configure(order["files"], ["csv", "json", "log"]))
    else:
        model.set_logger(Logger(folder=None, output_formats=[Rows(order["rows"])]))
    model.learn(order["steps"], callback=[ours, *callbacks], log_interval=order.get("log_interval", 2))
    result = {"weights": weights(model), "draws": draws(model), "steps": model.num_timesteps}
    Path(order["out"]).write_text(json.dumps(result))


def main() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    torch.optim.Adam([weight]).step()  # imports what the first step of an optimizer imports, once
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            with open(order["log"], "ab", buffering=0) as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            try:
                train(order)
            except BaseException as error:  # noqa: BLE001 - told, and the child ends
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(int(error.code or 1) if isinstance(error, SystemExit) else 1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
