"""Small trainings for the tests of the adapter."""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.utils import ConstantSchedule, LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from stable_baselines3.her import HerReplayBuffer


def small(**more: Any) -> dict[str, Any]:
    """Return options of a small model. Made anew each time: SB3 writes into `policy_kwargs`."""
    return {"policy_kwargs": {"net_arch": [16, 16]}, "seed": 0, "device": "cpu", **more}


def ppo(*, n_steps: int = 32, n_envs: int = 2, **options: Any) -> PPO:
    env = make_vec_env("CartPole-v1", n_envs=n_envs, seed=0)
    return PPO("MlpPolicy", env, n_steps=n_steps, batch_size=32, n_epochs=2, **small(**options))


def ppo_gsde() -> PPO:
    env = make_vec_env("Pendulum-v1", n_envs=2, seed=0)
    return PPO(
        "MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=2, use_sde=True, sde_sample_freq=5, **small()
    )


def a2c() -> A2C:
    return A2C("MlpPolicy", make_vec_env("CartPole-v1", n_envs=2, seed=0), **small())


def dqn() -> DQN:
    env = make_vec_env("CartPole-v1", n_envs=1, seed=0)
    return DQN(
        "MlpPolicy",
        env,
        learning_starts=40,
        buffer_size=90,
        target_update_interval=30,
        train_freq=4,
        **small(),
    )


def sac(**options: Any) -> SAC:
    env = make_vec_env("Pendulum-v1", n_envs=1, seed=0)
    return SAC("MlpPolicy", env, learning_starts=40, buffer_size=500, batch_size=32, **small(**options))


def sac_gsde() -> SAC:
    return sac(use_sde=True, sde_sample_freq=5, train_freq=8, gradient_steps=-1, use_sde_at_warmup=True)


def noise() -> OrnsteinUhlenbeckActionNoise:
    return OrnsteinUhlenbeckActionNoise(np.zeros(1), 0.2 * np.ones(1))


def td3_episodic() -> TD3:
    env = make_vec_env("Pendulum-v1", n_envs=1, seed=0, env_kwargs={"max_episode_steps": 50})
    return TD3(
        "MlpPolicy", env, learning_starts=40, buffer_size=900, batch_size=32, train_freq=(2, "episode"),
        gradient_steps=-1, action_noise=noise(), **small(),
    )  # fmt: skip


def td3_switched() -> TD3:
    env = make_vec_env("Pendulum-v1", n_envs=1, seed=0)
    return TD3(
        "MlpPolicy", env, learning_rate=LinearSchedule(1e-3, 1e-4, 1.0), learning_starts=70, buffer_size=500,
        batch_size=32, action_noise=noise(), **small(),
    )  # fmt: skip


class Switches(BaseCallback):
    """Puts other objects, and other numbers, where the script had its own, as a curriculum does."""

    def _on_rollout_end(self) -> None:
        model = self.model
        if self.num_timesteps < 45:
            return
        assert isinstance(model, TD3)
        if not isinstance(model.action_noise, NormalActionNoise):
            model.action_noise = NormalActionNoise(np.zeros(1), 0.3 * np.ones(1))
            model.train_freq = TrainFreq(3, TrainFrequencyUnit.STEP)  # type: ignore[assignment]
            model.learning_starts = 0
        model.lr_schedule = ConstantSchedule(5e-4)

    def _on_step(self) -> bool:
        return True


def td3_in_eights() -> TD3:
    env = make_vec_env("Pendulum-v1", n_envs=1, seed=0)
    return TD3(
        "MlpPolicy", env, learning_starts=10, buffer_size=500, batch_size=16, train_freq=8, gradient_steps=1,
        action_noise=noise(), **small(),
    )  # fmt: skip


class SwitchesInside(BaseCallback):
    """The same in the middle of a rollout, which goes on as it began: steps 33 to 40 of `td3_in_eights`."""

    def _on_step(self) -> bool:
        if self.n_calls == 36:
            assert isinstance(self.model, TD3)
            self.switch(self.model)
        return True

    def switch(self, model: TD3) -> None:
        raise NotImplementedError


class Longer(SwitchesInside):
    def switch(self, model: TD3) -> None:
        model.train_freq = TrainFreq(16, TrainFrequencyUnit.STEP)  # type: ignore[assignment]


class Shorter(SwitchesInside):
    def switch(self, model: TD3) -> None:
        model.train_freq = TrainFreq(6, TrainFrequencyUnit.STEP)  # type: ignore[assignment]


class InEpisodes(SwitchesInside):
    def switch(self, model: TD3) -> None:
        model.train_freq = TrainFreq(1, TrainFrequencyUnit.EPISODE)  # type: ignore[assignment]


class StartsLater(SwitchesInside):
    def switch(self, model: TD3) -> None:
        model.learning_starts = 44


class OtherNoise(SwitchesInside):
    def switch(self, model: TD3) -> None:
        model.action_noise = NormalActionNoise(np.zeros(1), 2.0 * np.ones(1))


td3_longer = td3_shorter = td3_in_episodes = td3_starts_later = td3_in_eights

CALLBACKS: dict[str, type[BaseCallback]] = {
    "td3_switched": Switches,
    "td3_longer": Longer,
    "td3_shorter": Shorter,
    "td3_in_episodes": InEpisodes,
    "td3_starts_later": StartsLater,
}
"""What trains beside ours."""


def dqn_n_steps() -> DQN:
    env = make_vec_env("CartPole-v1", n_envs=1, seed=0)
    return DQN("MlpPolicy", env, learning_starts=40, buffer_size=150, train_freq=4, n_steps=3, **small())


def dqn_lean() -> DQN:
    env = make_vec_env("CartPole-v1", n_envs=2, seed=0)
    return DQN(
        "MlpPolicy", env, learning_starts=40, buffer_size=140, train_freq=4, optimize_memory_usage=True,
        replay_buffer_kwargs={"handle_timeout_termination": False}, **small(),
    )  # fmt: skip


def sac_in_three() -> SAC:
    env = make_vec_env("Pendulum-v1", n_envs=3, seed=0)
    return SAC("MlpPolicy", env, learning_starts=40, buffer_size=240, batch_size=32, **small())


def bits(n_envs: int) -> DummyVecEnv:
    def make() -> BitFlippingEnv:
        return BitFlippingEnv(n_bits=12, max_steps=7)  # most episodes are cut off

    return DummyVecEnv([make] * n_envs)


def dqn_dict() -> DQN:
    return DQN(
        "MultiInputPolicy", bits(2), learning_starts=40, buffer_size=150, train_freq=4, **small()
    )  # fmt: skip


def dqn_her() -> DQN:
    return DQN(
        "MultiInputPolicy", bits(2), learning_starts=40, buffer_size=150, train_freq=4,
        replay_buffer_class=HerReplayBuffer, replay_buffer_kwargs={"copy_info_dict": True}, **small(),
    )  # fmt: skip


def qrdqn() -> Any:
    from sb3_contrib import QRDQN

    env = make_vec_env("CartPole-v1", n_envs=2, seed=0)
    return QRDQN("MlpPolicy", env, learning_starts=40, buffer_size=180, train_freq=4, **small())


def half_cheetah() -> PPO:
    env = VecNormalize(make_vec_env("HalfCheetah-v5", n_envs=2, seed=0))
    return PPO("MlpPolicy", env, n_steps=64, batch_size=64, n_epochs=2, **small())


def weights(model: OnPolicyAlgorithm | OffPolicyAlgorithm) -> dict[str, bytes]:
    """Return the bits of every weight and every number of the optimizers."""
    found: dict[str, bytes] = {}
    for name, tensor in model.policy.state_dict().items():
        found[name] = tensor.numpy().tobytes()
    for top, state in model.get_parameters().items():
        if "optimizer" in top:
            for number, values in state["state"].items():
                for key, value in values.items():
                    found[f"{top}.{number}.{key}"] = np.asarray(value).tobytes()
    return found
