"""What a person is warned of while the run goes on. Each can be turned into an error, or silenced, by its class."""

from __future__ import annotations


class PickledPartsWarning(UserWarning):
    """A checkpoint has parts that can only be pickled, and is therefore bound to a key."""


class StagingFullWarning(UserWarning):
    """A snapshot did not fit into memory, and training had to wait for the disk."""


class CompanionLeftWarning(UserWarning):
    """A process that writes for a killed training did not end in time; its last checkpoint is given up."""
