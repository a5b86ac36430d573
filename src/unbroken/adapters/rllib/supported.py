"""Which Algorithms can be saved. The others are refused by name, each with its reason, before anything is done."""

from __future__ import annotations

from typing import Any

from unbroken.errors import ConfigError
from unbroken.state.nodes import class_name

_ASYNCHRONOUS = "ray.rllib.algorithms.impala.impala:IMPALA"
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
    if _ASYNCHRONOUS in bases:
        raise ConfigError(
            f"{name} samples and learns at the same time: there is no moment at which nothing is under way, and"
            " two undisturbed runs differ.",
            hint="Use PPO, or RLlib's own checkpoints, which do not promise more.",
        )
    for base, why in _OTHERS.items():
        if base in bases:
            raise ConfigError(f"{name} is not captured: {why}.", hint="Use RLlib's own checkpoints.")
    if config.is_offline:
        raise ConfigError(
            f"{name} learns from recorded data, and where its readers stand is not captured.",
            hint="Use RLlib's own checkpoints.",
        )
