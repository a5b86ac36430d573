"""What a person is warned of while the run goes on. Each can be turned into an error, or silenced, by its class."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from unbroken.state.snapshot import Snapshot

SHOWN = 5

_ALLOW_MORE = "Allow more with staging=, for example staging=8 * 2**30."


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
    """A snapshot did not fit into memory: training had to wait for the disk, or nothing could be held."""

    @classmethod
    def training_waits(cls) -> StagingFullWarning:
        """Return what is said where a save is written from the memory of the training."""
        return cls(
            "A snapshot needs more memory than may be taken for it, so training waits while it is written."
            f" {_ALLOW_MORE}"
        )

    @classmethod
    def nothing_is_held(cls) -> StagingFullWarning:
        """Return what is said where a snapshot cannot be held beside the training."""
        return cls(
            "A snapshot needs more memory than may be taken for it, so none is held while training or an"
            f" evaluation takes long, and a save that is asked for then comes after it. {_ALLOW_MORE}"
        )


class CompanionLeftWarning(UserWarning):
    """A process that writes for a killed training did not end in time; its last checkpoint is given up."""


class WarnOnce:
    """What was said already: each class of warning is issued once by one engine."""

    def __init__(self) -> None:
        self._classes: set[type[Warning]] = set()

    def pickled(self, snapshot: Snapshot) -> None:
        """Say which parts of a snapshot can only be pickled, if there are any."""
        if places := [note.place for note in snapshot.notes if note.kind == "opaque"]:
            self.once(PickledPartsWarning.of(places))

    def once(self, warning: Warning) -> None:
        """Issue the warning unless one of its class was."""
        if type(warning) not in self._classes:
            self._classes.add(type(warning))
            warnings.warn(warning, stacklevel=3)
