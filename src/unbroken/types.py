"""Words that every layer shares."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NewType, Protocol, TypeAlias, TypeVar

Digest = NewType("Digest", str)
"""Identity of a blob: ``b3:`` or ``sha256:`` followed by lower-case hex of its uncompressed bytes."""

Epoch = NewType("Epoch", int)
"""Number of the process that may write to a run; a later process has a larger one."""

Sequence = NewType("Sequence", int)
"""Number of a commit within its run, counted from 1, never reused."""

Step = NewType("Step", int)
"""The framework's own global step: environment steps over all environments."""

WriteId = NewType("WriteId", str)
"""Random name of one attempt to write, so that no name is ever used twice."""

Place = NewType("Place", str)
"""Where a value stands in the state: keys from a root downward, joined as in RFC 6901 (JSON
pointer) without the leading slash: ``model/policy/optimizer/state/#0/exp_avg``."""


if TYPE_CHECKING:
    Plain: TypeAlias = "None | bool | int | float | str | list[Plain] | tuple[Plain, ...] | dict[str, Plain]"
else:
    Plain = Any  # a decoder of records cannot follow what is defined by itself; JSON holds nothing else
"""A plain value: what a record can say of a fact."""


class Fidelity(str, Enum):
    """What a component promises after a restore."""

    EXACT = "exact"
    APPROXIMATE = "approximate"
    NOT_CAPTURED = "not captured"


class How(str, Enum):
    """The way in which an environment's state is kept, in the words that a start, `show` and the docs have for it."""

    STRUCTURAL = "its attributes"
    CAPTURER = "a capturer for its simulator"
    REPLAY = "action replay since the last reset"
    WHOLE_REPLAY = "action replay since its construction"
    NOTHING = "nothing"


class Promising(Protocol):
    """Anything that promises a fidelity."""

    @property
    def fidelity(self) -> Fidelity: ...


AnyPromise = TypeVar("AnyPromise", bound=Promising)


def worse(one: AnyPromise, other: AnyPromise) -> AnyPromise:
    """Return the one that promises less; of equals the first."""
    order = list(Fidelity)
    return other if order.index(other.fidelity) > order.index(one.fidelity) else one


class Missing(Enum):
    """The type of `MISSING`: no object stands at this place."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING
