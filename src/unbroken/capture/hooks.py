"""One method of one live object, replaced for as long as something has to be recorded.

A hook is an attribute of the instance: no class and no module is touched, and removing it leaves the
object as it was. It pickles (and so deep-copies) as the method that it stands for, because checkpoints of
frameworks must go on working while it is in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _itself(value: Any) -> Any:
    return value


class Hook:
    """An instance attribute `name` of `owner` that calls `call`; `original` is what it stands for.

    `keeper` is the recorder that installed it, so that a captor finds the recorder through the object.
    """

    __unbroken_hook__ = True

    def __init__(self, owner: Any, name: str, call: Callable[..., Any], *, keeper: object) -> None:
        self.owner = owner
        self.name = name
        self.keeper = keeper
        self._call = call
        self._own = name in vars(owner)
        self.original: Callable[..., Any] = getattr(owner, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._own:
            return _itself, (self.original,)
        # The copy of the owner has no attributes yet at this point: this is the method of its class.
        return getattr, (self.owner, self.name)

    def install(self) -> None:
        setattr(self.owner, self.name, self)

    def remove(self) -> None:
        """Put back what was there. Where somebody wrapped the hook meanwhile, it becomes transparent."""
        self._call = self.original
        if vars(self.owner).get(self.name) is not self:
            return
        if self._own:
            setattr(self.owner, self.name, self.original)
        else:
            delattr(self.owner, self.name)


def keeper_of(value: object, name: str) -> object:
    """Return the recorder whose hook stands at attribute `name` of `value`, or None."""
    hook = value.__dict__.get(name) if type(value).__dictoffset__ else None
    return hook.keeper if isinstance(hook, Hook) else None
