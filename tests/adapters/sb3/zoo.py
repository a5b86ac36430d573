"""A callback for RL Zoo's hyperparameter files that ends the process, or has a start leave parts cold."""

from __future__ import annotations

import os
import signal
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from tests.adapters.sb3.runner import leave_cold
from unbroken.adapters.sb3.session import _open


class Trial(BaseCallback):
    """Does what ZOO_KILL (a number of calls) and ZOO_COLD (a place) say, else nothing."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._kill = int(os.environ.get("ZOO_KILL", "0"))
        leave_cold([place for place in (os.environ.get("ZOO_COLD", ""),) if place])

    def _on_step(self) -> bool:
        for session in _open.values() if self._kill else ():
            # Which checkpoints there are must not depend on the machine's load.
            assert session._engine is not None
            session._engine._writer.wait()
        if self.n_calls == self._kill:
            os.kill(os.getpid(), signal.SIGKILL)
        return True
