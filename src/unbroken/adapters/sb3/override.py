"""Instance attributes that stand before a method for the time of a training.

No class is touched: the attribute hides the method of one object and is deleted at the end. Other
code that copies or pickles the object meanwhile (`model.save`, `deepcopy(model)`) never sees ours:
an override copies and pickles as the method behind it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from unbroken.types import MISSING, Missing


class Override:
    """What is called in place of `owner.name`. `original` is what was there before."""

    def __init__(self, owner: object, name: str, call: Callable[..., Any]) -> None:
        self._owner = owner
        self._name = name
        self._call = call
        self._hidden: object | Missing = vars(owner).get(name, MISSING)
        self.original: Callable[..., Any] = getattr(owner, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def install(self) -> None:
        """Stand before the method."""
        vars(self._owner)[self._name] = self

    def remove(self) -> None:
        """Give the method back. Does nothing if something else stands there by now."""
        attributes = vars(self._owner)
        if attributes.get(self._name) is not self:
            return
        if self._hidden is MISSING:
            del attributes[self._name]
        else:
            attributes[self._name] = self._hidden

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self._hidden is not MISSING:
            return copy.deepcopy(self._hidden, memo)
        twin = copy.deepcopy(self._owner, memo)
        return getattr(type(twin), self._name).__get__(twin)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, str]]:
        # While the owner is being unpickled it has no attributes yet: this finds the method of its class.
        return getattr, (self._owner, self._name)


class Exclusion:
    """Stands before `_excluded_save_params`, so that `model.save()` leaves out what we put on the model.

    Without it SB3 would pickle our overrides into the zip, and with them the model itself.
    """

    NAME = "_excluded_save_params"

    def __init__(self, model: object, names: tuple[str, ...]) -> None:
        self._model = model
        self._names = names

    def __call__(self) -> list[str]:
        excluded: list[str] = getattr(type(self._model), self.NAME)(self._model)
        return [*excluded, *self._names, self.NAME]

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
        self._override = Override(owner, name, self._skip)
        if times > 0:
            self._override.install()

    def _skip(self, *args: Any, **kwargs: Any) -> None:
        self._left -= 1
        if self._left <= 0:
            self._override.remove()

    def remove(self) -> None:
        """Give the method back now, even if the call never came."""
        self._override.remove()
