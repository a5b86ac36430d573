"""What a tracker is to the rest: somewhere that marks are left, and that has an identity worth keeping.

`adapters/trackers` has one of each kind.

Not promised: that a tracker answers. Whoever calls these bears what they raise, in a thread that nobody waits for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

CHECKPOINT = "unbroken/checkpoint"
"""The step of a checkpoint, once it is durable."""
SECONDS = "unbroken/save_seconds"
"""From the copy of the state until the commit existed."""
RESTART = "unbroken/restart"
"""The step that a start went on from."""
LOST = "unbroken/steps_lost"
"""Steps that are done again since, where it is known how many."""

KNOWN = ("tensorboard", "wandb", "mlflow")
"""The trackers that there are, by the names that settings call them by."""


class Place(Protocol):
    """Where marks of one run are left. All but the first come in one thread, one after the other."""

    @property
    def kind(self) -> str:
        """One of `KNOWN`."""
        ...

    @property
    def title(self) -> str:
        """What a person calls it."""
        ...

    @property
    def identity(self) -> Mapping[str, str]:
        """What a later start has to know to go on in the same place; nothing where it needs nothing.

        The first entry is what tells this place from others of its kind."""
        ...

    def begin(self, *, step: int, segment: int) -> None:
        """Make room for what is logged from `step` on. Called once, by the training, before it goes on: be quick."""
        ...

    def began(self, where: str) -> None:
        """The training of the run that lies `where` has begun, or goes on."""
        ...

    def restarted(self, line: str, *, step: int, lost: int | None) -> None:
        """It goes on from a checkpoint; `line` says so to people, `lost` is how many steps are done again; None: nobody
        knows, or only how many at least, as the line says then."""
        ...

    def saved(self, *, step: int, seconds: float) -> None:
        """A checkpoint exists, `seconds` after the state was copied."""
        ...

    def flush(self) -> None:
        """Let what was marked be seen."""
        ...


class Finder(Protocol):
    """Finds the run of one kind of tracker that the script has begun."""

    @property
    def kind(self) -> str:
        """One of `KNOWN`."""
        ...

    def find(self, modules: Mapping[str, object]) -> Place | None:
        """Return where the calling thread logs to, if the library is among the loaded `modules` and a run has begun.

        Asked at every save, in the training's thread: what costs anything waits until a place is begun."""
        ...


Finders: TypeAlias = Sequence[Finder]
