"""What the companion says of a save: that it is committed, that all is done, or which error ended it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias, Union, cast

import msgspec

from unbroken import errors
from unbroken.engine.companion.places import places_as_bytes, places_of_bytes
from unbroken.errors import InternalError, UnbrokenError
from unbroken.state.snapshot import Base, Snapshot

Fact: TypeAlias = Union[bool, int, str, list[Union[int, str]]]
"""What an error of ours carries beside its words."""


class CommittedReport(msgspec.Struct, frozen=True, tag="committed"):
    """The snapshot is durable; `saved` is what its blobs are saved as, by component, and `renewed` are blobs
    that were damaged and are no longer, since it holds them."""

    saved: dict[str, dict[int, Base]]
    sick_from_birth: list[bytes]
    renewed: list[str]

    @classmethod
    def of(
        cls, snapshot: Snapshot, sick_from_birth: frozenset[str], renewed: Collection[str]
    ) -> CommittedReport:
        """Report on `snapshot`."""
        saved = {name: part.saved for name, part in snapshot.components.items()}
        return cls(saved, places_as_bytes(sick_from_birth), sorted(renewed))

    def tell(self, snapshot: Snapshot) -> frozenset[str]:
        """Write into the trainer's own snapshot what it is saved as; return what was sick from birth."""
        for name, saved in self.saved.items():
            snapshot.components[name].saved = saved
        return places_of_bytes(self.sick_from_birth)


class DoneReport(msgspec.Struct, frozen=True, tag="done"):
    """Retention is done as well; `condemned` are the packs whose deletion was begun. `unrecorded` says why the save
    is not on record, and `relieved` what a full disk has cost; see `Outcome`."""

    condemned: list[str]
    unrecorded: str = ""
    relieved: str = ""


class FailedReport(msgspec.Struct, frozen=True, tag="failed"):
    """An error of ours, taken apart."""

    kind: str
    message: str
    hint: str
    facts: dict[str, Fact]
    condemned: list[str]

    @classmethod
    def of(cls, error: Exception, condemned: Collection[str]) -> FailedReport:
        """Take an error apart. Whatever is none of ours is a bug, and becomes our error for that."""
        if not isinstance(error, UnbrokenError):
            error = InternalError(f"Writing failed with {type(error).__name__}: {error}")
        facts: dict[str, Fact] = {}
        for name, value in cast("dict[str, object]", vars(error)).items():
            if isinstance(value, (str, int)):
                facts[name] = value
            elif isinstance(value, tuple):
                items = cast("tuple[object, ...]", value)
                facts[name] = [item if isinstance(item, (str, int)) else str(item) for item in items]
        del facts["message"], facts["hint"]
        return cls(type(error).__name__, error.message, error.hint, facts, sorted(condemned))

    def error(self) -> UnbrokenError:
        """Return the error as it was raised, without its traceback."""
        kind: type[UnbrokenError] = getattr(errors, self.kind)
        return kind(self.message, hint=self.hint, **self.facts)


Report: TypeAlias = Union[CommittedReport, DoneReport, FailedReport]

_DECODER: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)


def encode(report: Report) -> bytes:
    """Return a report as bytes."""
    return msgspec.msgpack.encode(report)


def decode(data: bytes) -> Report:
    """Return the report in `data`."""
    return _DECODER.decode(data)
