"""One cell of the matrix: a training, and what is claimed of it.

A cell claims nothing by itself; `oracle` runs it and says what holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Claim: TypeAlias = Literal["exact", "approximate", "impossible", "refused"]


def _nothing(_model: Any) -> list[Any]:
    return []


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A training in one environment.

    `build` returns a model of SB3 or a `loops.Loop`, in the process that is to train it. `steps` are those of
    the whole training, as `learn` counts them. `cold` are the parts that the third run leaves as it has built
    them: what the cell is about, so that a restore without them must be noticed. Where less than exact is claimed
    there is no third run.
    """

    group: str
    name: str
    algorithm: str
    environment: str
    around: str = ""
    """Wrappers, callbacks and settings that make this cell another one than its neighbours."""
    build: Callable[[], Any]
    callbacks: Callable[[Any], list[Any]] = _nothing
    steps: int
    cold: tuple[str, ...]
    cold_in: Literal["weights", "state"] = "weights"
    """Where the missing part shows: in what was learned, or only in the state itself."""
    after: int = 5
    """Steps that are taken after the training, to compare what the environment does next."""
    window: tuple[float, float] = (0.4, 0.8)
    """The part of the training in which the kill is drawn."""
    every: int = 0
    """Calls between two saves; 0: about a tenth of the training."""
    claim: Claim = "exact"
    because: str = ""
    """Where the claim is less than exact: a part of the reason that the checkpoint must give for it, or the start that
    refuses to go on."""
    needs: tuple[str, ...] = ()
    """Modules that must be there, beside SB3 and Gymnasium."""

    @property
    def key(self) -> str:
        """What selects the cell on the command line, unique in the matrix."""
        return f"{self.group}/{self.name}"
