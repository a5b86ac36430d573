"""The cells about environments: each family of Gymnasium and its neighbours, and what wraps them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from gymnasium import wrappers
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.vec_env import (
    VecCheckNan,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

from exactness import worlds
from exactness.building import atari, image, off_policy, on_policy, tiny, vector
from exactness.cell import Cell
from unbroken.envs import FreshWorld

LUNAR, WALKER = "LunarLander-v3", "BipedalWalker-v3"
CONTINUOUS: dict[str, Any] = {"continuous": True, "enable_wind": True}
ENVIRONMENT = ("model/env",)


def quick(env: Any, policy: str = "MlpPolicy", **more: Any) -> PPO:
    return PPO(policy, env, **on_policy(**more))


def rescaled(env: Any) -> Any:
    return wrappers.RescaleAction(env, np.float32(-0.5), np.float32(0.5))


def pictures(env: Any, *, n_steps: int = 16) -> PPO:
    return PPO("CnnPolicy", env, n_steps=n_steps, batch_size=16, n_epochs=1, **image())


def plain(
    group: str, env: str, *, steps: int = 192, count: int = 2, name: str = "", around: str = "", **more: Any
) -> Cell:
    """PPO in one environment of a family, of which the third run leaves the whole environment cold."""
    inside = more.pop("inside", ())
    build: Callable[[], Any] = lambda: quick(vector(env, count, inside=inside, **more))  # noqa: E731
    return Cell(
        group=group, name=name or env.partition("-v")[0], algorithm="PPO", environment=env, around=around,
        build=build, steps=steps, cold=ENVIRONMENT,
    )  # fmt: skip


TOY_TEXT = [
    plain("toy text", "FrozenLake-v1", around="slippery"),
    plain("toy text", "Taxi-v3", is_rainy=True, fickle_passenger=True, around="rainy, fickle passenger"),
    plain("toy text", "CliffWalking-v1", is_slippery=True, around="slippery"),
    plain(
        "toy text",
        "Blackjack-v1",
        inside=(wrappers.FlattenObservation,),
        around="Tuple observations, flattened",
    ),
]
CLASSIC = [
    plain("classic control", "MountainCar-v0"),
    plain("classic control", "MountainCarContinuous-v0"),
    plain("classic control", "Acrobot-v1"),
]
BOX2D = [
    Cell(
        group="Box2D", name="LunarLander-workers", algorithm="PPO", environment=LUNAR,
        around="continuous, wind, 4 environments in processes, VecNormalize",
        build=lambda: quick(VecNormalize(vector(LUNAR, 4, processes=True, **CONTINUOUS))),
        steps=512, cold=ENVIRONMENT,
    ),
    Cell(
        group="Box2D", name="LunarLander-dqn", algorithm="DQN", environment=LUNAR, around="2 environments",
        build=lambda: DQN("MlpPolicy", vector(LUNAR, 2), **off_policy()),
        steps=400, cold=ENVIRONMENT,
    ),
    Cell(
        group="Box2D", name="CarRacing", algorithm="PPO", environment="CarRacing-v3",
        build=lambda: pictures(vector("CarRacing-v3", max_episode_steps=60)),
        steps=80, cold=ENVIRONMENT, after=2,
    ),
    Cell(
        group="Box2D", name="BipedalWalker", algorithm="PPO", environment=WALKER,
        around="as it is: replay since its construction",
        build=lambda: quick(vector(WALKER, 2, max_episode_steps=60)), steps=320, cold=ENVIRONMENT,
    ),
    Cell(
        group="Box2D", name="BipedalWalker-fresh", algorithm="PPO", environment=WALKER,
        around="`unbroken.envs.FreshWorld`: a new world for each episode",
        build=lambda: quick(vector(WALKER, 2, inside=(FreshWorld,), max_episode_steps=60)), steps=320,
        cold=ENVIRONMENT,
    ),
    Cell(
        group="Box2D", name="BipedalWalker-workers", algorithm="PPO", environment=WALKER,
        around="`FreshWorld`, 2 environments in processes",
        build=lambda: quick(
            vector(WALKER, 2, processes=True, inside=(FreshWorld,), max_episode_steps=60)
        ),
        steps=320, cold=ENVIRONMENT,
    ),
    Cell(
        group="Box2D", name="BipedalWalkerHardcore", algorithm="PPO", environment="BipedalWalkerHardcore-v3",
        around="as it is: replay since its construction",
        build=lambda: quick(vector("BipedalWalkerHardcore-v3", max_episode_steps=60)), steps=192,
        cold=ENVIRONMENT,
    ),
]  # fmt: skip
MINIGRID = [
    Cell(
        group="MiniGrid", name="DoorKey", algorithm="PPO", environment="MiniGrid-DoorKey-5x5-v0",
        around="ImgObsWrapper, FlattenObservation",
        build=lambda: quick(
            vector(worlds.grid("DoorKey-5x5"), 2, inside=(worlds.flat_grid,), max_steps=40)
        ),
        steps=256, cold=ENVIRONMENT, needs=("minigrid",),
    ),
    Cell(
        group="MiniGrid", name="MultiRoom-workers", algorithm="PPO", environment="MiniGrid-MultiRoom-N2-S4-v0",
        around="in processes",
        build=lambda: quick(
            vector(worlds.grid("MultiRoom-N2-S4"), 2, processes=True, inside=(worlds.flat_grid,), max_steps=20)
        ),
        steps=256, cold=ENVIRONMENT, needs=("minigrid",),
    ),
]  # fmt: skip
MUJOCO = [
    plain("MuJoCo", f"{name}-v5", steps=128, count=1, max_episode_steps=40, around="episodes of 40 steps")
    for name in (
        "Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum",
        "InvertedPendulum", "Pusher", "Reacher", "Swimmer", "Walker2d",
    )
] + [
    Cell(
        group="MuJoCo", name="Hopper-workers", algorithm="SAC", environment="Hopper-v5",
        around="in processes, EvalCallback",
        build=lambda: SAC("MlpPolicy", vector("Hopper-v5", 2, processes=True), **off_policy()),
        callbacks=lambda _model: [worlds.evaluation(vector("Hopper-v5", max_episode_steps=20), 27)],
        steps=160, cold=ENVIRONMENT,
    ),
]  # fmt: skip
ALE = [
    Cell(
        group="ALE", name="Pong", algorithm="DQN", environment="ALE/Pong-v5",
        around="sticky actions (0.25), AtariWrapper, VecFrameStack",
        build=lambda: DQN(
            "CnnPolicy", VecFrameStack(vector(atari("Pong"), inside=(AtariWrapper,)), 4), learning_starts=20,
            buffer_size=60, batch_size=8, target_update_interval=30, **image(),
        ),
        steps=80, cold=ENVIRONMENT,
    ),
    Cell(
        group="ALE", name="Pong-workers", algorithm="PPO", environment="ALE/Pong-v5",
        around="sticky actions, AtariWrapper, VecFrameStack over processes",
        build=lambda: pictures(
            VecFrameStack(vector(atari("Pong"), 2, processes=True, inside=(AtariWrapper,)), 4)
        ),
        steps=96, cold=ENVIRONMENT,
    ),
    Cell(
        group="ALE", name="Breakout-lean", algorithm="DQN", environment="ALE/Breakout-v5",
        around="`optimize_memory_usage`, AtariWrapper, VecFrameStack over processes",
        build=lambda: DQN(
            "CnnPolicy", VecFrameStack(vector(atari("Breakout"), 2, processes=True, inside=(AtariWrapper,)), 4),
            learning_starts=20, buffer_size=80, batch_size=8, optimize_memory_usage=True,
            replay_buffer_kwargs={"handle_timeout_termination": False}, **image(),
        ),
        steps=96, cold=ENVIRONMENT,
    ),
    Cell(
        group="ALE", name="Breakout-steady", algorithm="PPO", environment="ALE/Breakout-v5",
        around="no sticky actions, AtariPreprocessing, FrameStackObservation",
        build=lambda: pictures(
            vector(
                atari("Breakout", repeat_action_probability=0.0),
                inside=(
                    partial(wrappers.AtariPreprocessing, noop_max=10), partial(wrappers.FrameStackObservation, stack_size=4),
                ),
            )
        ),
        steps=64, cold=ENVIRONMENT,
    ),
    Cell(
        group="ALE", name="Pong-each-frame", algorithm="PPO", environment="ALE/Pong-v5",
        around="sticky actions at every frame, nothing skipped, resized",
        build=lambda: pictures(
            vector(atari("Pong", obs_type="grayscale"), inside=(worlds.small_picture,))
        ),
        steps=64, cold=ENVIRONMENT,
    ),
    Cell(
        group="ALE", name="ram", algorithm="A2C", environment="ALE/Freeway-v5", around="sticky actions, RAM observations",
        build=lambda: A2C("MlpPolicy", vector(atari("Freeway", obs_type="ram"), 2), **tiny()),
        steps=120, cold=ENVIRONMENT,
    ),
]  # fmt: skip
WRAPPED = [
    Cell(
        group="wrappers", name="vec-monitor", algorithm="PPO", environment="Pendulum-v1",
        around="VecNormalize over VecMonitor, TimeLimit × 3",
        build=lambda: quick(
            VecNormalize(
                VecMonitor(
                    vector(
                        "Pendulum-v1", 2,
                        inside=tuple(partial(wrappers.TimeLimit, max_episode_steps=n) for n in (90, 61, 37)),
                    )
                )
            )
        ),
        steps=256, cold=("model/env/venv/episode_returns", "model/env/venv/venv"),
    ),
    Cell(
        group="wrappers", name="chain", algorithm="PPO", environment="Hopper-v5",
        around="RescaleAction, NormalizeObservation, NormalizeReward, FrameStackObservation,"
        " TimeLimit, one in another",
        build=lambda: quick(
            vector(
                "Hopper-v5",
                inside=(
                    rescaled, wrappers.NormalizeObservation,
                    wrappers.NormalizeReward, partial(wrappers.FrameStackObservation, stack_size=3),
                    wrappers.FlattenObservation, partial(wrappers.TimeLimit, max_episode_steps=23),
                ),
            )
        ),
        steps=160, cold=ENVIRONMENT,
    ),
    Cell(
        group="wrappers", name="sticky", algorithm="PPO", environment="CartPole-v1",
        around="StickyAction, DelayObservation, TimeAwareObservation",
        build=lambda: quick(
            vector(
                "CartPole-v1", 2,
                inside=(
                    partial(wrappers.StickyAction, repeat_action_probability=0.4),
                    partial(wrappers.DelayObservation, delay=2), wrappers.TimeAwareObservation,
                ),
            )
        ),
        steps=192, cold=ENVIRONMENT,
    ),
    Cell(
        group="wrappers", name="image", algorithm="PPO", environment="of a user's own",
        around="VecTransposeImage over VecFrameStack over VecCheckNan",
        build=lambda: pictures(
            VecTransposeImage(
                VecFrameStack(
VecCheckNan(vector(worlds.Picture, 2), raise_exception=True),
                    3,
                )
            )
        ),
        steps=96, cold=("model/env/venv/stacked_obs", "model/_last_obs"),
    ),
    Cell(
        group="wrappers", name="dictionary", algorithm="PPO", environment="of a user's own",
        around="Dict observations: VecNormalize over some keys, VecFrameStack",
        build=lambda: quick(
            VecFrameStack(VecNormalize(vector(worlds.Drift, 2), norm_obs_keys=["at"]), 2), "MultiInputPolicy"
        ),
        steps=192, cold=("model/env/stacked_obs", "model/_last_obs"),
    ),
    Cell(
        group="wrappers", name="extracted", algorithm="A2C", environment="of a user's own",
        around="VecExtractDictObs, in processes",
        build=lambda: A2C(
            "MlpPolicy", VecExtractDictObs(vector(worlds.Drift, 2, processes=True), "at"), **tiny()
        ),
        steps=160, cold=ENVIRONMENT,
    ),
]  # fmt: skip
OWN = [
    Cell(
        group="of one's own", name="without-spec", algorithm="SAC", environment="a class of the script",
        around="found out by a trial",
        build=lambda: SAC("MultiInputPolicy", vector(worlds.Drift), **off_policy()),
        steps=110, cold=ENVIRONMENT,
    ),
    Cell(
        group="of one's own", name="registered", algorithm="PPO", environment="an engine behind a handle",
        around="`register_env_capturer`, 2 environments in processes",
        build=lambda: quick(worlds.registered(worlds.Registered, 2, processes=True)),
        steps=192, cold=ENVIRONMENT,
    ),
    Cell(
        group="of one's own", name="address", algorithm="PPO", environment="an engine behind an address",
        around="`register_env_capturer` with `attributes=False`: the address is not restored",
        build=lambda: quick(worlds.registered(worlds.Addressed, 2, attributes=False)), steps=192, cold=ENVIRONMENT,
    ),
    Cell(
        group="of one's own", name="address-restored", algorithm="PPO", environment="an engine behind an address",
        around="`register_env_capturer`, which restores the address too",
        build=lambda: quick(worlds.registered(worlds.Readdressed)), steps=192, cold=ENVIRONMENT, claim="refused",
        because="RestoreFailed: The capturer registered for Readdressed could not bring back",
    ),
    Cell(
        group="of one's own", name="replayed", algorithm="PPO", environment="keeps its state in a generator of Python",
        around="nothing registered",
        build=lambda: quick(vector(worlds.Unfolding, 2)), steps=192, cold=ENVIRONMENT,
    ),
    Cell(
        group="of one's own", name="handle", algorithm="PPO", environment="an engine behind a handle",
        around="nothing registered",
        build=lambda: quick(vector(worlds.Hidden)), steps=192, cold=ENVIRONMENT, claim="approximate",
        because="env_states approximate: it keeps state out of reach, in exactness.worlds.Hidden.engines",
    ),
    Cell(
        group="of one's own", name="clock", algorithm="PPO", environment="reads the wall clock",
        build=lambda: quick(vector(worlds.Clocked), "MultiInputPolicy"), steps=128, cold=ENVIRONMENT, claim="approximate",
        because="env_states approximate: it reads the clock",
    ),
    Cell(
        group="of one's own", name="parallel", algorithm="PPO", environment="PettingZoo, parallel",
        around="SuperSuit's converter: pettingzoo_env_to_vec_env_v1, concat_vec_envs_v1",
        build=lambda: quick(worlds.herd(), seed=None), steps=256, cold=ENVIRONMENT, needs=("pettingzoo", "supersuit"),
        after=0,
    ),
]  # fmt: skip
CELLS = [*TOY_TEXT, *CLASSIC, *BOX2D, *MINIGRID, *MUJOCO, *ALE, *WRAPPED, *OWN]
