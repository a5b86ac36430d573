"""RLlib: `config.callbacks(unbroken.rllib.checkpoints("runs/ppo"))`."""

from __future__ import annotations

from unbroken.adapters.rllib.callback import checkpoints
from unbroken.adapters.rllib.session import EnvRunnerRecreatedWarning, IterationLengthWarning
from unbroken.engine.schedule import Every
from unbroken.repo.retention import Best

__all__ = ["Best", "EnvRunnerRecreatedWarning", "Every", "IterationLengthWarning", "checkpoints"]
