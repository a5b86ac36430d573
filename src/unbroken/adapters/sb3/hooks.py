"""What stands on a model and on callbacks for the time of a training, beside `capture.hooks.Hook`.

No class is touched: an instance attribute hides the method of one object and is deleted at the end. Other
code that copies or pickles the object meanwhile (`model.save`, `deepcopy(model)`) never sees ours.
"""

from __future__ import annotations

from typing import Any

from unbroken.capture.hooks import Hook


class Exclusion:
    """Stands before `_excluded_save_params`, so that `model.save()` leaves out what we put on the model.

    Without it SB3 would pickle our hooks into the zip, and with them the model itself.
    """

    NAME = "_excluded_save_params"

    def __init__(self, model: object, names: tuple[str, ...]) -> None:
        self._model = model
        self._names = names

    def __call__(self) -> list[str]:
        excluded: list[str] = getattr(type(self._model), self.NAME)(self._model)
        return [*excluded, *self._names]

    def __reduce__(self) -> tuple[type[Exclusion], tuple[object, tuple[str, ...]]]:
        # A copied model still carries the plain methods under our names: the copy must leave them out too.
        return Exclusion, (self._model, self._names)

    def install(self) -> None:
        """Stand before the method."""
        vars(self._model)[self.NAME] = self

    def remove(self) -> None:
        """Give the method back."""
        if vars(self._model).get(self.NAME) is self:
            del vars(self._model)[self.NAME]


class Muted:
    """`owner.name` does nothing for the next `times` calls; then the method is back."""

    def __init__(self, owner: object, name: str, *, times: int = 1) -> None:
        self._left = times
        self._hook = Hook(owner, name, self._skip, keeper=self)
        self._hook.install()

    def _skip(self, *args: Any, **kwargs: Any) -> None:
        self._left -= 1
        if self._left <= 0:
            self._hook.remove()

    def remove(self) -> None:
        """Give the method back now, even if the calls never came."""
        self._hook.remove()
