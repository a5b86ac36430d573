"""How to walk the objects of RLlib: what belongs to the process, what opens a component, what is kept.

Names only: nothing here imports Ray. Everything that is not named is walked, so that attributes of a
user's own subclasses come along.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from unbroken.adapters.rllib.buffers import buffers_rule
from unbroken.adapters.rllib.callbacks import callbacks_rule
from unbroken.adapters.rllib.episodes import episodes_rule
from unbroken.adapters.rllib.metrics import stats_rule
from unbroken.capture.elsewhere import in_one_document
from unbroken.capture.source import policy_of_loaded
from unbroken.state.nodes import Dict, Value, class_name
from unbroken.state.policy import Captor, Policy

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

RLLIB = "ray.rllib"
ALGORITHM = f"{RLLIB}.algorithms.algorithm:Algorithm"
CALLBACK = "unbroken.adapters.rllib.callback:CheckpointCallback"
RUNNERS = "env_runners"
LEARNERS = "learners"

_HOOKS = frozenset({"step", "log_result", "cleanup", "load_checkpoint", "_sample_and_get_connector_states"})
_PARTS = frozenset({"callbacks", "env_runner_group", "eval_env_runner_group", "learner_group",
                    "local_replay_buffer", "metrics"})  # fmt: skip
"""Captured under names of their own: see `source`."""
_TIMES = ("_time_total",)
"""What an algorithm has counted in seconds."""
_OF_THE_PROCESS = frozenset({
    "config", "evaluation_config", "env_creator", "spaces", "_env_id", "_logdir", "_local_ip", "_monitor",
    "_storage", "_trial_info", "_start_time", "_last_result", "_restored", "_timers",
    "_iterations_since_restore", "_time_since_restore", "_timesteps_since_restore", "_stdout_context",
    "_stdout_file", "_stdout_fp", "_stdout_stream", "_stderr_context", "_stderr_file", "_stderr_fp",
    "_stderr_logging_handler", "_stderr_stream", "remote_requests_in_flight", "_aggregator_actor_manager",
    "evaluation_dataset", "offline_data", "reward_estimators", "offline_eval_runner_group",
    # What is under way in an asynchronous algorithm; at a save it is brought to rest: see `traffic`.
    "_episode_packs_being_built", "_ma_batches_being_built", "_env_runner_state_server",
    "data_to_place_on_learner", "local_mixin_buffer", "_batch_being_built", "_results",
})  # fmt: skip
_OF_THE_THREAD = frozenset({
    "_learner_thread", "_learner_thread_in_queue", "_learner_thread_out_queue", "_gpu_loader_in_queue",
    "_agg_event", "_submitted_updates", "_num_updates", "_num_updates_lock", "_update_kwargs",
    "_model_io_lock", "_learner_state_queue", "_learner_state_lock", "_learner_state",
})  # fmt: skip
"""How an asynchronous learner speaks with its thread; at rest that begins anew."""

_TARGETS = ("_target_encoder", "_target_af", "_target_vf", "target_qf_encoder", "target_qf", "target_qf_twin",
            "target_qf_twin_encoder")  # fmt: skip

POLICY = Policy(
    skip={
        ALGORITHM: _HOOKS | _PARTS | _OF_THE_PROCESS | frozenset(_TIMES),
        f"{RLLIB}.env.env_runner:EnvRunner": frozenset(
            # A reading of this process's clock, taken when the last sample was handed over.
            {"_callbacks", "_time_after_sampling", "tune_trial_id", "_env_runner_state_server", "num_workers"}
        ),
        f"{RLLIB}.core.learner.learner:Learner": frozenset({"_node", "_placement_group"}),
        f"{RLLIB}.algorithms.impala.impala_learner:IMPALALearner": _OF_THE_THREAD,
        f"{RLLIB}.env.vector.vector_multi_agent_env:VectorMultiAgentEnv": frozenset({"env_fns", "spec"}),
        f"{RLLIB}.utils.metrics.metrics_logger:MetricsLogger": frozenset({"_time_when_initialized"}),
        # What it was built with: the program's, and not to be restored.
        f"{RLLIB}.connectors.connector_v2:ConnectorV2": frozenset({"_ctor_kwargs", "_rl_module_specs"}),
        # Made when it is first needed, and holds nothing.
        f"{RLLIB}.connectors.learner.general_advantage_estimation:GeneralAdvantageEstimation": frozenset(
            {"_numpy_to_tensor_connector"}
        ),
        CALLBACK: frozenset({"session"}),
    },
    external=frozenset({"ray._raylet", "ray.actor", "ray.util.metrics", "ray.util.placement_group"}),
    external_classes=frozenset({f"{RLLIB}.algorithms.algorithm_config:AlgorithmConfig"}),
    structural=frozenset({
        ALGORITHM,
        f"{RLLIB}.callbacks.callbacks:RLlibCallback",
        f"{RLLIB}.connectors.connector_v2:ConnectorV2",
        f"{RLLIB}.core.learner.learner:Learner",
        f"{RLLIB}.core.rl_module.rl_module:RLModule",
        f"{RLLIB}.env.env_runner:EnvRunner",
        f"{RLLIB}.env.vector.vector_multi_agent_env:VectorMultiAgentEnv",
        f"{RLLIB}.utils.replay_buffers.base:ReplayBufferInterface",
    }),
    trusted=frozenset({"ray"}),
    # What tables of an episode of many agents make their entries of.
    functions=frozenset({f"{RLLIB}.env.utils.infinite_lookback_buffer:InfiniteLookbackBuffer"}),
    components={
        f"{RLLIB}.core.learner.learner:Learner": LEARNERS,
        f"{RLLIB}.env.env_runner:EnvRunner": RUNNERS,
        f"{RLLIB}.env.vector.vector_multi_agent_env:VectorMultiAgentEnv": "env_states",
        f"{RLLIB}.utils.metrics.metrics_logger:MetricsLogger": "metrics",
        f"{RLLIB}.utils.replay_buffers.base:ReplayBufferInterface": "replay_buffer",
        "unbroken.adapters.rllib.callbacks:Callbacks": "callbacks",
        "unbroken.adapters.rllib.actors:RunnerActors": RUNNERS,
        "unbroken.adapters.rllib.actors:LearnerActors": LEARNERS,
    },
    component_keys=dict.fromkeys(_TARGETS, "target_weights"),
    captors=(buffers_rule, episodes_rule, callbacks_rule, stats_rule),
)  # fmt: skip


class AlgorithmCaptor:
    """Keeps what an algorithm counts in seconds apart from what it counts in steps."""

    def attributes(self, obj: Any) -> None:
        return None

    def capture(self, obj: Any, walk: Walk) -> dict[str, Value]:
        return {"clocks": Dict(v={name.strip("_"): float(getattr(obj, name)) for name in _TIMES})}

    def plan(self, extra: dict[str, Value], obj: Any, graft: Graft) -> None:
        saved = extra.get("clocks")
        fields = saved.v if isinstance(saved, Dict) and saved.v is not None else {}
        for name in _TIMES:
            value = fields.get(name.strip("_"))
            if isinstance(value, float):
                graft.write(vars(obj).__setitem__, name, value)


_algorithm = AlgorithmCaptor()


def _algorithm_rule(obj: object) -> Captor | None:
    return _algorithm if any(class_name(cls) == ALGORITHM for cls in type(obj).__mro__) else None


@cache
def driver_policy() -> Policy:
    """Return the rules for the process of the Algorithm, with those of every framework it has imported."""
    from unbroken.adapters.rllib.actors import actors_rule  # other processes have none of their own

    return policy_of_loaded(POLICY, Policy(captors=(_algorithm_rule, actors_rule)))


@cache
def actor_policy() -> Policy:
    """Return the rules for one env runner or learner in a process of its own."""
    return in_one_document(policy_of_loaded(POLICY))
