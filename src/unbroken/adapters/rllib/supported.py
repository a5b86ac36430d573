"""Which Algorithms can be saved. The others are refused by name, each with its reason, before anything is done."""

from __future__ import annotations

from typing import Any

from unbroken.adapters.rllib.traffic import is_asynchronous
from unbroken.errors import ConfigError
from unbroken.state.nodes import class_name

_OTHERS = {
    "ray.rllib.algorithms.dreamerv3.dreamerv3:DreamerV3": "its replay buffer and its learner go on in ways that"
    " were never put to the test",
}


def check_supported(algorithm: Any) -> None:
    """Raise ConfigError for an Algorithm whose state cannot be captured."""
    config, name = algorithm.config, type(algorithm).__name__
    bases = {class_name(cls) for cls in type(algorithm).__mro__}
    if not (config.enable_rl_module_and_learner and config.enable_env_runner_and_connector_v2):
        raise ConfigError(
            "This Algorithm runs on RLlib's old API stack, which is not captured.",
            hint="Leave .api_stack(...) out: the new stack is the default.",
        )
    if is_asynchronous(algorithm) and config.num_gpus_per_learner > 0:
        raise ConfigError(
            f"{name} loads batches to GPUs in threads of their own, which cannot be brought to rest for a save.",
            hint="Set num_gpus_per_learner=0, or use RLlib's own checkpoints, which drop what is under way.",
        )
    for base, why in _OTHERS.items():
        if base in bases:
            raise ConfigError(f"{name} is not captured: {why}.", hint="Use RLlib's own checkpoints.")
    if config.is_offline:
        raise ConfigError(
            f"{name} learns from recorded data, and where its readers stand is not captured.",
            hint="Use RLlib's own checkpoints.",
        )
