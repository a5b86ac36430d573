"""The loop of ARS (sb3-contrib), which collects no rollouts: `learn` calls `_do_one_update` again and again.

Between two updates everything is on the model; inside one the candidates, their returns and the episodes
that are going on lie in local variables. So the clean point is the call of `_do_one_update`, and a save
that is asked for waits for the next, or takes the copy held from the one before.

Refused: `async_eval`, whose processes keep environments and generators of their own out of reach.

Not promised: an algorithm that overrides ARS's `learn`.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from unbroken.adapters.sb3.loop import Listener, Loop, signature_of
from unbroken.adapters.sb3.position import END, START, STOPPED
from unbroken.capture.hooks import Hook
from unbroken.errors import ConfigError

UPDATE: Final = "_do_one_update"


def is_ars(model: BaseAlgorithm) -> bool:
    """Return whether `model` is trained by the loop of ARS. Imports nothing."""
    return any(
        (base.__module__, base.__qualname__) == ("sb3_contrib.ars.ars", "ARS") for base in type(model).__mro__
    )


class UpdateLoop(Loop):
    """The loop of one `learn()` call of an ARS `model`."""

    def __init__(self, model: BaseAlgorithm, callback: BaseCallback, listener: Listener) -> None:
        super().__init__(model, callback, listener)
        self.model: Any = model
        self._update = Hook(model, UPDATE, self._do_one_update, keeper=self)
        self._signature = signature_of(model, UPDATE)
        self._logs = Hook(model, "dump_logs", self._dump_logs, keeper=self)

    def install(self) -> None:
        """Put the hooks on the model."""
        super().install()
        self._update.install()

    def remove(self) -> None:
        """Take every hook away. May be called twice."""
        super().remove()
        self._update.remove()
        self._logs.remove()

    def _do_one_update(self, *args: Any, **kwargs: Any) -> None:
        call = self._signature.bind(*args, **kwargs)
        root: BaseCallback = call.arguments["callback"]
        if not self._is_ours(root):
            # Left over from a `learn()` that raised outside our sight; this one is not ours.
            self.remove()
            self._update.original(*args, **kwargs)
            return
        try:
            again = self._root is None and self._begin(root, call.arguments.get("async_eval"))
            if not self._over:
                self._one_update(call, at_checkpoint=again)
        except BaseException as error:
            self._abandon(error)
            raise

    def _begin(self, root: BaseCallback, async_eval: object) -> bool:
        """Restore; return whether the loop stands where the checkpoint was taken."""
        if async_eval is not None:
            raise ConfigError(
                "ARS with async_eval evaluates in processes whose environments cannot be saved.",
                hint="Leave async_eval out; a SubprocVecEnv evaluates in several processes and is saved.",
            )
        model = self.model
        wanted = model._total_timesteps
        self._watch_end(root)
        restored = self._listener.begin(root)
        if restored is None:
            return False
        self.position = restored
        if restored.kind == STOPPED or (restored.kind == END and model.num_timesteps >= wanted):
            self._over = True
            self._logs.install()  # `learn` logs once more, which it has done before
            return False
        # `learn` has computed it, from a count that began at zero and from what it was called with.
        total = root.locals.get("total_timesteps", wanted)
        model._update_current_progress_remaining(model.num_timesteps, total)
        return True

    def _one_update(self, call: inspect.BoundArguments, *, at_checkpoint: bool) -> None:
        position = self.position
        position.kind = START
        if not at_checkpoint:
            self._listener.at_step(position)
        with self._listener.during("update", position):
            self._update.original(*call.args, **call.kwargs)
        position.rollouts += 1
        position.episodes += len(self.model.ep_info_buffer)  # emptied at the begin of every update

    def _dump_logs(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is logged twice."""
