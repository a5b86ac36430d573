"""What a tracker is to the rest: somewhere that marks are left, and that has an identity worth keeping.

Not promised: that a tracker answers. Whoever calls these bears what they raise, in a thread that nobody waits for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

CHECKPOINT = "unbroken/checkpoint"
"""The step of a checkpoint, once it is durable."""
SECONDS = "unbroken/save_seconds"
"""From the copy of the state until the commit existed."""
RESTART = "unbroken/restart"
"""The step that a start went on from."""
LOST = "unbroken/steps_lost"
"""Steps that are done again since."""

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
        """What a later start has to know to go on in the same place; nothing where it needs nothing."""
        ...

    def begin(self, *, step: int, segment: int) -> None:
        """Make room for what is logged from `step` on. Called by the training, before it goes on: be quick."""
        ...

    def began(self, where: str) -> None:
        """The training of the run that lies `where` has begun, or goes on."""
        ...

    def restarted(self, line: str, *, step: int, lost: int | None) -> None:
        """It goes on from a checkpoint; `line` says so to people, `lost` is how many steps are done again."""
        ...

    def saved(self, *, step: int, seconds: float) -> None:
        """A checkpoint exists, `seconds` after the state was copied."""
        ...

    def flush(self) -> None:
        """Let what was marked be seen."""
        ...
