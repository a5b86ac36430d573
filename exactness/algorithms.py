"""The cells about algorithms: every one of SB3 and sb3-contrib, with the options that have a state of their own."""

from __future__ import annotations

from typing import Any

from sb3_contrib import ARS, QRDQN, TQC, TRPO, CrossQ, MaskablePPO, RecurrentPPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import (
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnNoModelImprovement,
)
from stable_baselines3.common.envs import BitFlippingEnv, SimpleMultiObsEnv
from stable_baselines3.common.noise import VectorizedActionNoise
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her import HerReplayBuffer

from exactness.building import noisy_pendulum, normal, off_policy, on_policy, ornstein, tiny, vector
from exactness.cell import Cell

SHORT: dict[str, Any] = {"max_episode_steps": 50}
CART, PENDULUM, HOPPER = "CartPole-v1", "Pendulum-v1", "Hopper-v5"


def bits(*, continuous: bool = False) -> Any:
    # Most episodes are cut off by the limit, so the end of an episode is inside and outside of a goal.
    return vector(lambda: BitFlippingEnv(n_bits=8, continuous=continuous, max_steps=7), 2)


def her(**more: Any) -> dict[str, Any]:
    buffer = {"replay_buffer_class": HerReplayBuffer, "replay_buffer_kwargs": {"copy_info_dict": True}}
    return off_policy(**{**buffer, **more})


def evaluated(env: Any, **more: Any) -> EvalCallback:
    return EvalCallback(env, n_eval_episodes=2, verbose=0, **more)


ON_POLICY = [
    Cell(
        group="PPO", name="schedule", algorithm="PPO", environment=CART, around="learning rate falls",
        build=lambda: PPO(
            "MlpPolicy", vector(CART), learning_rate=lambda left: 1e-2 * left, **on_policy()
        ),
        steps=192, cold=("model/_last_obs",),
    ),
    Cell(
        group="PPO", name="workers", algorithm="PPO", environment=CART, around="4 environments in processes",
        build=lambda: PPO("MlpPolicy", vector(CART, 4, processes=True), **on_policy()),
        steps=384, cold=("model/env",),
    ),
    Cell(
        group="PPO", name="rollout-end", algorithm="PPO", environment=CART, around="saved at the end of a rollout",
        build=lambda: PPO("MlpPolicy", vector(CART, 4), **on_policy()),
        steps=512, cold=("model/policy/optimizer",), every=32, window=(0.5, 0.7),
    ),
    Cell(
        group="PPO", name="last-rollout", algorithm="PPO", environment=CART, around="killed in the last rollout",
        build=lambda: PPO("MlpPolicy", vector(CART), **on_policy(n_steps=64)),
        steps=256, cold=("model/rollout_buffer/rewards",), window=(0.9, 0.98), every=6,
    ),
    Cell(
        group="PPO", name="past-the-end", algorithm="PPO", environment=CART,
        around="killed in the last rollout, past `total_timesteps`",
        build=lambda: PPO("MlpPolicy", vector(CART), **on_policy(n_steps=64)),
        steps=200, cold=("model/policy/optimizer",), window=(0.9, 0.98), every=5,
    ),
    Cell(
        group="PPO", name="normalized", algorithm="PPO", environment=PENDULUM,
        around="VecNormalize, Monitor's file, clip range falls",
        build=lambda: PPO(
            "MlpPolicy", VecNormalize(vector(PENDULUM, 4, monitor="monitor")), clip_range=lambda left: 0.3 * left,
            **on_policy(),
        ),
        steps=512, cold=("model/env/returns",),
    ),
    Cell(
        group="PPO", name="noisy-workers", algorithm="PPO", environment=PENDULUM,
        around="in processes, which draw noise from their own global generators; VecNormalize",
        build=lambda: PPO(
            "MlpPolicy", VecNormalize(vector(noisy_pendulum, 2, processes=True)), **on_policy()
        ),
        steps=256, cold=("model/env/venv/<workers>/0/generators",),
    ),
    Cell(
        group="PPO", name="gsde", algorithm="PPO", environment=PENDULUM, around="gSDE, new noise every 7 steps",
        build=lambda: PPO(
            "MlpPolicy", vector(PENDULUM, 2), use_sde=True, sde_sample_freq=7, **on_policy()
        ),
        steps=256, cold=("model/policy/action_dist",),
    ),
    Cell(
        group="PPO", name="evaluated", algorithm="PPO", environment=PENDULUM,
        around="EvalCallback (draws its actions), StopTrainingOnNoModelImprovement; VecNormalize",
        build=lambda: PPO("MlpPolicy", VecNormalize(vector(PENDULUM, 2, **SHORT)), **on_policy()),
        callbacks=lambda _model: [
            evaluated(
                VecNormalize(vector(PENDULUM, 1, **SHORT), training=False, norm_reward=False), eval_freq=22,
                deterministic=False, best_model_save_path="best", log_path="evaluations",
                callback_after_eval=StopTrainingOnNoModelImprovement(4, min_evals=2, verbose=0),
            )
        ],
        steps=448, cold=("callbacks/EvalCallback/n_calls",), window=(0.5, 0.7),
    ),
    Cell(
        group="PPO", name="stopped", algorithm="PPO", environment=CART,
        around="`target_kl`; StopTrainingOnMaxEpisodes below EveryNTimesteps",
        build=lambda: PPO("MlpPolicy", vector(CART, 2), target_kl=0.003, **on_policy()),
        callbacks=lambda model: [
            StopTrainingOnMaxEpisodes(24, verbose=0),
            EveryNTimesteps(50, evaluated(vector(CART), eval_freq=1)),
        ],
        steps=2000, cold=("model/env",), after=0,
    ),
    Cell(
        group="PPO", name="dictionary", algorithm="PPO", environment="SimpleMultiObsEnv", around="Dict observations",
        build=lambda: PPO(
            "MultiInputPolicy", vector(lambda: SimpleMultiObsEnv(random_start=True), 2), **on_policy()
        ),
        steps=192, cold=("model/env",),
    ),
    Cell(
        group="A2C", name="two", algorithm="A2C", environment=CART,
        build=lambda: A2C("MlpPolicy", vector(CART, 2), **tiny()),
        steps=160, cold=("generators",),
    ),
    Cell(
        group="A2C", name="gsde-workers", algorithm="A2C", environment=PENDULUM,
        around="gSDE, Adam, 3 environments in processes, VecNormalize",
        build=lambda: A2C(
            "MlpPolicy", VecNormalize(vector(PENDULUM, 3, processes=True)), use_sde=True, use_rms_prop=False,
            **tiny(),
        ),
        steps=240, cold=("model/policy/action_dist",),
    ),
    Cell(
        group="A2C", name="acrobot", algorithm="A2C", environment="Acrobot-v1",
        build=lambda: A2C("MlpPolicy", vector("Acrobot-v1", 2), **tiny()),
        steps=160, cold=("model/env",),
    ),
]  # fmt: skip

OFF_POLICY = [
    Cell(
        group="DQN", name="wrapped-buffer", algorithm="DQN", environment=CART,
        around="the buffer is full and turns over; exploration falls until the end",
        build=lambda: DQN(
            "MlpPolicy", vector(CART), target_update_interval=30, exploration_fraction=1.0, exploration_final_eps=0.2,
            **off_policy(buffer_size=90),
        ),
        steps=300, cold=("model/_n_calls",),
    ),
    Cell(
        group="DQN", name="target", algorithm="DQN", environment=CART, around="killed between two updates of the target",
        build=lambda: DQN("MlpPolicy", vector(CART), target_update_interval=70, **off_policy()),
        steps=160, cold=("model/policy/_modules/q_net_target",),
    ),
    Cell(
        group="DQN", name="lean", algorithm="DQN", environment=CART,
        around="`optimize_memory_usage`, 4 environments, `train_freq=3`, `gradient_steps=-1`",
        build=lambda: DQN(
            "MlpPolicy", vector(CART, 4), optimize_memory_usage=True, train_freq=3, gradient_steps=-1,
            replay_buffer_kwargs={"handle_timeout_termination": False}, **off_policy(buffer_size=200),
        ),
        steps=400, cold=("model/replay_buffer/observations",),
    ),
    Cell(
        group="DQN", name="n-step", algorithm="DQN", environment=CART, around="n-step returns (3)",
        build=lambda: DQN("MlpPolicy", vector(CART), n_steps=3, train_freq=4, **off_policy(buffer_size=150)),
        steps=260, cold=("model/replay_buffer/rewards",),
    ),
    Cell(
        group="DQN", name="dictionary", algorithm="DQN", environment="BitFlippingEnv", around="Dict observations",
        build=lambda: DQN("MultiInputPolicy", bits(), train_freq=4, **off_policy(buffer_size=150)),
        steps=260, cold=("model/replay_buffer",),
    ),
    Cell(
        group="DQN", name="her", algorithm="DQN", environment="BitFlippingEnv",
        around="HerReplayBuffer with its open episode, `copy_info_dict`, 2 environments",
        build=lambda: DQN("MultiInputPolicy", bits(), train_freq=4, **her(buffer_size=150)),
        steps=300, cold=("model/replay_buffer/ep_length",),
    ),
    Cell(
        group="SAC", name="schedule", algorithm="SAC", environment=PENDULUM,
        around="learning rate falls, entropy temperature is learned",
        build=lambda: SAC("MlpPolicy", vector(PENDULUM), learning_rate=lambda left: 1e-2 * left, **off_policy()),
        steps=110, cold=("model/ent_coef_optimizer",),
    ),
    Cell(
        group="SAC", name="gsde", algorithm="SAC", environment=PENDULUM,
        around="gSDE, 2 environments, VecNormalize, `train_freq=8`, `gradient_steps=-1`",
        build=lambda: SAC(
            "MlpPolicy", VecNormalize(vector(PENDULUM, 2)), use_sde=True, sde_sample_freq=5, train_freq=8,
            gradient_steps=-1, use_sde_at_warmup=True, **off_policy(),
        ),
        steps=200, cold=("model/actor/action_dist",),
    ),
    Cell(
        group="SAC", name="warm-up", algorithm="SAC", environment=PENDULUM,
        around="killed while actions are still sampled from the space",
        build=lambda: SAC("MlpPolicy", vector(PENDULUM), **off_policy(learning_starts=95)),
        steps=110, cold=("model/action_space",), window=(0.3, 0.7),
    ),
    Cell(
        group="SAC", name="tensorboard", algorithm="SAC", environment=PENDULUM, around="TensorBoard is written",
        build=lambda: SAC(
            "MlpPolicy", vector(PENDULUM, **SHORT), tensorboard_log="board", **off_policy()
        ),
        steps=110, cold=("model/replay_buffer",),
    ),
    Cell(
        group="SAC", name="her", algorithm="SAC", environment="BitFlippingEnv (continuous)",
        around="HerReplayBuffer, 2 environments",
        build=lambda: SAC("MultiInputPolicy", bits(continuous=True), **her()),
        steps=180, cold=("model/replay_buffer/observations",),
    ),
    Cell(
        group="TD3", name="ornstein", algorithm="TD3", environment=PENDULUM,
        around="Ornstein-Uhlenbeck noise of 2 environments",
        build=lambda: TD3("MlpPolicy", vector(PENDULUM, 2), action_noise=ornstein(), **off_policy()),
        steps=180, cold=("model/action_noise",),
    ),
    Cell(
        group="TD3", name="vectorized-noise", algorithm="TD3", environment=PENDULUM,
        around="VectorizedActionNoise that the script has made",
        build=lambda: TD3(
            "MlpPolicy", vector(PENDULUM, 2), action_noise=VectorizedActionNoise(ornstein(), 2), **off_policy()
        ),
        steps=180, cold=("generators",),
    ),
    Cell(
        group="TD3", name="episodes", algorithm="TD3", environment=PENDULUM, around='`train_freq=(2, "episode")`',
        build=lambda: TD3(
            "MlpPolicy", vector(PENDULUM, max_episode_steps=25), train_freq=(2, "episode"), gradient_steps=-1,
            action_noise=ornstein(), **off_policy(),
        ),
        steps=175, cold=("generators",), every=11,
    ),
    Cell(
        group="TD3", name="past-the-end", algorithm="TD3", environment=PENDULUM,
        around="`train_freq=16`, killed past `total_timesteps`",
        build=lambda: TD3(
            "MlpPolicy", vector(PENDULUM), train_freq=16, gradient_steps=4, action_noise=normal(), **off_policy()
        ),
        steps=98, cold=("generators",), window=(0.9, 0.98), every=3,
    ),
    Cell(
        group="DDPG", name="noise", algorithm="DDPG", environment="Ant-v5", around="normal noise",
        build=lambda: DDPG("MlpPolicy", vector("Ant-v5"), action_noise=normal(8), **off_policy()),
        steps=110, cold=("model/replay_buffer",),
    ),
]  # fmt: skip

CONTRIB = [
    Cell(
        group="contrib", name="trpo", algorithm="TRPO", environment=HOPPER, around="VecNormalize",
        build=lambda: TRPO(
            "MlpPolicy", VecNormalize(vector(HOPPER, 2)), **tiny(n_steps=32, batch_size=32)
        ),
        steps=192, cold=("model/env/obs_rms",),
    ),
    Cell(
        group="contrib", name="recurrent", algorithm="RecurrentPPO", environment=CART,
        build=lambda: RecurrentPPO(
            "MlpLstmPolicy", vector(CART, 2), **on_policy(policy_kwargs={"lstm_hidden_size": 8})
        ),
        steps=192, cold=("model/_last_lstm_states",),
    ),
    Cell(
        group="contrib", name="recurrent-gsde", algorithm="RecurrentPPO", environment=PENDULUM,
        around="gSDE, VecNormalize",
        build=lambda: RecurrentPPO(
            "MlpLstmPolicy", VecNormalize(vector(PENDULUM, 2)), use_sde=True, sde_sample_freq=5,
            **on_policy(policy_kwargs={"lstm_hidden_size": 8}),
        ),
        steps=192, cold=("model/_last_lstm_states",),
    ),
    Cell(
        group="contrib", name="maskable", algorithm="MaskablePPO", environment="InvalidActionEnvDiscrete",
        build=lambda: MaskablePPO(
            "MlpPolicy", vector(lambda: InvalidActionEnvDiscrete(dim=8, n_invalid_actions=4), 2), **on_policy()
        ),
        steps=192, cold=("model/env",), after=0,
    ),
    Cell(
        group="contrib", name="qrdqn", algorithm="QR-DQN", environment="Acrobot-v1", around="2 environments",
        build=lambda: QRDQN("MlpPolicy", vector("Acrobot-v1", 2), train_freq=4, **off_policy(buffer_size=180)),
        steps=260, cold=("model/replay_buffer",),
    ),
    Cell(
        group="contrib", name="tqc", algorithm="TQC", environment=PENDULUM,
        build=lambda: TQC("MlpPolicy", vector(PENDULUM), **off_policy()),
        steps=90, cold=("model/critic/optimizer",),
    ),
    Cell(
        group="contrib", name="crossq", algorithm="CrossQ", environment=PENDULUM, around="BatchRenorm",
        build=lambda: CrossQ("MlpPolicy", vector(PENDULUM), **off_policy()),
        steps=90, cold=("model/critic",),
    ),
    Cell(
        group="contrib", name="ars", algorithm="ARS", environment=CART,
        around="VecNormalize; goes on from the start of an update",
        build=lambda: ARS("LinearPolicy", VecNormalize(vector(CART, 2)), n_delta=4, seed=0, device="cpu"),
        steps=2400, cold=("model/env/obs_rms",),
    ),
]  # fmt: skip

CELLS = [*ON_POLICY, *OFF_POLICY, *CONTRIB]
