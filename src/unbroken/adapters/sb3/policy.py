"""How to walk the objects of SB3: what belongs to the process, what opens a component, what is kept.

Names only: nothing here imports SB3, and nothing is specific to one algorithm.
"""

from __future__ import annotations

from functools import cache

from unbroken.adapters.sb3.elapsed import elapsed_rule
from unbroken.adapters.sb3.evaluations import evaluation_rule
from unbroken.adapters.sb3.files import monitor_rule
from unbroken.adapters.sb3.logs import logger_rule
from unbroken.capture.elsewhere import in_one_document
from unbroken.capture.source import policy_of_loaded
from unbroken.state.policy import Policy

SB3 = "stable_baselines3.common"

HOOKS = frozenset(
    {"collect_rollouts", "train", "dump_logs", "_sample_action", "_do_one_update", "_excluded_save_params"}
)
"""Attributes that may stand on a model while it trains: see `training_loop` and `ars`."""
CALLBACK_HOOKS = frozenset({"on_training_end", "on_rollout_start", "update_locals"})
"""Attributes that may stand on the outermost callback."""

POLICY = Policy(
    # Recurrent buffers make partials of them when they are first sampled.
    functions=frozenset(
        {
            "sb3_contrib.common.recurrent.buffers:pad",
            "sb3_contrib.common.recurrent.buffers:pad_and_flatten",
        }
    ),
    skip={
        f"{SB3}.base_class:BaseAlgorithm": HOOKS
        | {"start_time", "tensorboard_log", "device", "_vec_normalize_env"},
        # `callbacks` of a list: its members are captured by name, so that one more is no change.
        f"{SB3}.callbacks:CallbackList": frozenset({"callbacks"}),
        f"{SB3}.callbacks:BaseCallback": CALLBACK_HOOKS | {"locals", "globals"},
        # Where a callback writes its files is a matter of each start.
        f"{SB3}.callbacks:EvalCallback": frozenset({"log_path", "best_model_save_path"}),
        f"{SB3}.callbacks:CheckpointCallback": frozenset({"save_path"}),
        "rl_zoo3.callbacks:SaveVecNormalizeCallback": frozenset({"save_path"}),
        f"{SB3}.logger:Logger": frozenset({"dir", "output_formats"}),
        f"{SB3}.monitor:Monitor": frozenset({"t_start"}),
        f"{SB3}.vec_env.vec_monitor:VecMonitor": frozenset({"t_start"}),
        f"{SB3}.vec_env.base_vec_env:VecEnvWrapper": frozenset({"class_attributes"}),
        f"{SB3}.vec_env.subproc_vec_env:SubprocVecEnv": frozenset({"remotes", "work_remotes", "processes"}),
    },
    external=frozenset(
        {
            "tqdm",
            "rich",
            "tensorboard",
            "torch.utils.tensorboard",
            "wandb",
            "mlflow",
            "multiprocessing",
            "cv2",
        }
    ),
    external_classes=frozenset(
        {f"{SB3}.monitor:ResultsWriter", "unbroken.adapters.sb3.callback:CheckpointCallback"}
    ),
    structural=frozenset(
        {
            f"{SB3}.base_class:BaseAlgorithm",
            f"{SB3}.callbacks:BaseCallback",
            f"{SB3}.vec_env.base_vec_env:VecEnv",
        }
    ),
    trusted=frozenset({"stable_baselines3", "sb3_contrib"}),
    components={
        f"{SB3}.vec_env.base_vec_env:VecEnv": "env_states",
        f"{SB3}.buffers:ReplayBuffer": "replay_buffer",
        f"{SB3}.buffers:RolloutBuffer": "rollout_buffer",
        f"{SB3}.callbacks:BaseCallback": "callbacks",
        f"{SB3}.logger:Logger": "logger",
    },
    captors=(monitor_rule, logger_rule, evaluation_rule, elapsed_rule),
)


@cache
def training_policy() -> Policy:
    """Return the rules for a training in this process, with those of every framework it has imported."""
    from unbroken.adapters.sb3.workers import workers_rule  # the workers themselves need `worker_policy`

    return policy_of_loaded(POLICY, Policy(captors=(workers_rule,)))


@cache
def worker_policy() -> Policy:
    """Return the rules for one environment in a process of its own: everything in one document."""
    return in_one_document(policy_of_loaded(POLICY))
