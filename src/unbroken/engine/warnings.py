"""What a person is warned of while the run goes on. Each can be turned into an error, or silenced, by its class."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

SHOWN = 5


class PickledPartsWarning(UserWarning):
    """A checkpoint has parts that can only be pickled, and is therefore bound to a key."""

    @classmethod
    def of(cls, places: Sequence[str]) -> PickledPartsWarning:
        """Return the warning that names these parts."""
        more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
        return cls(
            f"Can only be pickled: {', '.join(places[:SHOWN])}{more}. The checkpoints are signed with the key"
            " of this user; to resume them elsewhere, set UNBROKEN_KEY to one key here and there."
        )


class StagingFullWarning(UserWarning):
    """A snapshot did not fit into memory, and training had to wait for the disk."""


class CompanionLeftWarning(UserWarning):
    """A process that writes for a killed training did not end in time; its last checkpoint is given up."""


class Told:
    """What was said already: each class of warning is issued once by one engine."""

    def __init__(self) -> None:
        self._classes: set[type[Warning]] = set()

    def once(self, warning: Warning) -> None:
        """Issue the warning unless one of its class was."""
        if type(warning) not in self._classes:
            self._classes.add(type(warning))
            warnings.warn(warning, stacklevel=3)
