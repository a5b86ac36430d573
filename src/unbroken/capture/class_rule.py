"""A rule that gives a captor to the objects of certain classes and of those derived from them.

The classes are known by name, so nothing is imported to ask. A walk asks for every object; each class is
looked at once.
"""

from __future__ import annotations

from unbroken.state.nodes import class_name
from unbroken.state.policy import Captor


class ClassRule:
    """The rule for one captor; `names` are ``module:Qualname``."""

    def __init__(self, captor: Captor, *names: str) -> None:
        self._captor = captor
        self._names = frozenset(names)
        self._fits: dict[type, bool] = {}

    def __call__(self, obj: object) -> Captor | None:
        """Return the captor of `obj`, None if it is of another class."""
        cls = type(obj)
        fits = self._fits.get(cls)
        if fits is None:
            fits = self._fits[cls] = not self._names.isdisjoint(map(class_name, cls.__mro__))
        return self._captor if fits else None
