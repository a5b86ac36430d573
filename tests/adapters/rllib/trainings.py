"""Small trainings for the tests of the adapter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.connectors.env_to_module.mean_std_filter import MeanStdFilter
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

BUFFER = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 150, "alpha": 0.6, "beta": 0.4}
NET = {"fcnet_hiddens": [8]}


def new(config: Callable[[], AlgorithmConfig]) -> AlgorithmConfig:
    return config()


def ppo(runners: int, *, env: str | type = "CartPole-v1", envs: int = 2, **training: Any) -> Any:
    config: Any = new(PPOConfig).environment(env).rl_module(model_config=NET)
    config.training(train_batch_size=64, minibatch_size=32, num_epochs=2, **training)
    return usual(config, runners, envs)


def dqn(runners: int, **training: Any) -> Any:
    config: Any = new(DQNConfig).environment("CartPole-v1").rl_module(model_config=NET)
    config.training(
        train_batch_size=16, num_steps_sampled_before_learning_starts=30, replay_buffer_config={**BUFFER},
        target_network_update_freq=25, n_step=(1, 3), **training,
    )  # fmt: skip
    config.reporting(min_sample_timesteps_per_iteration=40)
    return usual(config, runners, 1)


def sac(runners: int, **training: Any) -> Any:
    config: Any = new(SACConfig).environment("Pendulum-v1").rl_module(model_config=NET)
    config.training(
        train_batch_size_per_learner=16, num_steps_sampled_before_learning_starts=30,
        replay_buffer_config={**BUFFER}, **training,
    )  # fmt: skip
    config.reporting(min_sample_timesteps_per_iteration=40)
    return usual(config, runners, 1)


def asynchronous(name: str, runners: int, learners: int, aggregators: int = 0) -> Any:
    config: Any = new({"appo": APPOConfig, "impala": IMPALAConfig}[name]).environment("CartPole-v1")
    config.rl_module(model_config=NET).training(train_batch_size_per_learner=50)
    config.learners(num_learners=learners, num_aggregator_actors_per_learner=aggregators)
    usual(config, runners, 1).env_runners(rollout_fragment_length=10)
    config.reporting(min_sample_timesteps_per_iteration=200)
    return config


def ppo_of_learners(runners: int, *, learners: int = 1) -> Any:
    """Train in remote learners."""
    return ppo(runners).learners(num_learners=learners, num_cpus_per_learner=0.5)


def ppo_of_two_learners(runners: int) -> Any:
    return ppo_of_learners(runners, learners=2)


def ppo_with_memory(runners: int) -> Any:
    """Train a recurrent network."""
    return ppo(runners).rl_module(
        model_config={**NET, "use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 4}
    )


def ppo_with_filter(runners: int) -> Any:
    """Train on observations that a running mean and deviation normalise."""
    return ppo(runners).env_runners(env_to_module_connector=mean_filter)


def mean_filter(*_: Any, **__: Any) -> Any:
    return MeanStdFilter()


def ppo_with_evaluation(runners: int) -> Any:
    config = ppo(runners)
    return config.evaluation(
        evaluation_interval=1, evaluation_duration=2, evaluation_duration_unit="episodes"
    )


def ppo_of_agents(runners: int) -> Any:
    """Train two agents with a policy each."""
    config = ppo(runners, env=MultiAgentCartPole, envs=1)
    config.environment(env_config={"num_agents": 2})
    return config.multi_agent(policies={"one", "other"}, policy_mapping_fn=policy_of)


def policy_of(agent: int, *_: Any, **__: Any) -> str:
    return "other" if agent else "one"


def usual(config: Any, runners: int, envs: int) -> Any:
    config.env_runners(num_env_runners=runners, num_envs_per_env_runner=envs)
    config.reporting(min_time_s_per_iteration=0)
    config.debugging(seed=7, log_level="ERROR")
    return config
