"""What the loops of all algorithms have in common: who listens, whose `learn()` it is, and how it ends.

Not promised: that hooks are gone when `learn()` is left by an error outside the methods that are hooked;
the next `install` or `remove` clears them.
"""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager
from typing import Any, Protocol

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from unbroken.adapters.sb3.callbacks import holds
from unbroken.adapters.sb3.hooks import Exclusion
from unbroken.adapters.sb3.policy import HOOKS
from unbroken.adapters.sb3.position import END, STOPPED, Position
from unbroken.capture.hooks import Hook
from unbroken.errors import ConfigError


def signature_of(model: BaseAlgorithm, method: str) -> inspect.Signature:
    """Return how `learn` calls a method that takes the callback: a subclass may take `*args` and pass them on."""
    for cls in type(model).__mro__:
        function = vars(cls).get(method)
        if function is not None:
            found = inspect.signature(function.__get__(model))
            if "callback" in found.parameters:
                return found
    raise ConfigError(
        f"{type(model).__name__}.{method} takes no callback, so it is not known when training begins.",
        hint=f"Give {method} the arguments that it has in Stable-Baselines3.",
    )


class Listener(Protocol):
    """Who is told. Each call comes at a clean point, except `abandoned`."""

    def begin(self, root: BaseCallback) -> Position | None:
        """Everything is built and reset. Restore, and return where the loop is to go on; None: here."""
        ...

    def at_step(self, position: Position) -> None:
        """The next environment step is about to be chosen."""
        ...

    def during(self, what: str, position: Position) -> AbstractContextManager[None]:
        """Something without a clean point inside comes next, which may take long: a call of `train()`, an update."""
        ...

    def finished(self, position: Position) -> None:
        """The loop is over; the callbacks have not been told yet."""
        ...

    def abandoned(self, error: BaseException) -> None:
        """Training ended with `error`, which is raised on."""
        ...


class Loop:
    """The loop of one `learn()` call of `model`. `callback` is ours, by which we know our own calls."""

    def __init__(
        self,
        model: BaseAlgorithm,
        callback: BaseCallback,
        listener: Listener,
        *,
        hooked: tuple[str, ...] = (),
    ) -> None:
        self.position = Position()
        self._callback = callback
        self._listener = listener
        self._root: BaseCallback | None = None
        self._over = False
        self._ended_early = False
        self._excluded = Exclusion(model, tuple(sorted(HOOKS)))
        self._end: Hook | None = None

    def install(self) -> None:
        """Put the hooks on the model."""
        self._excluded.install()

    def remove(self) -> None:
        """Take every hook away. May be called twice."""
        if self._end is not None:
            self._end.remove()
        self._excluded.remove()

    @property
    def skipped(self) -> bool:
        """Whether the training had come to its end before this `learn()` and nothing was done."""
        return self._over

    def _is_ours(self, root: BaseCallback) -> bool:
        """Whether the `learn()` with this outermost callback is the one that we were put into."""
        return self._root is root or holds(root, self._callback)

    def _watch_end(self, root: BaseCallback) -> None:
        self._root = root
        self._end = Hook(root, "on_training_end", self._training_end, keeper=self)
        self._end.install()

    def _training_end(self, *args: Any, **kwargs: Any) -> None:
        end = self._end
        assert end is not None
        if not self._over:
            self.position.kind = STOPPED if self._ended_early else END
        try:
            self._listener.finished(self.position)
        except BaseException as error:
            self._abandon(error)
            raise
        self.remove()
        end.original(*args, **kwargs)

    def _abandon(self, error: BaseException) -> None:
        self.remove()
        self._listener.abandoned(error)
