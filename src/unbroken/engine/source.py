"""What the engine needs of a training: something that can be captured and restored."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from unbroken.engine.changes import Change, Verdict
from unbroken.engine.wording import Words
from unbroken.format.chunks import ChunkList
from unbroken.state.graft import Graft
from unbroken.state.pickles import Trust
from unbroken.state.snapshot import Base, Component, JournalEntry, Snapshot


class Source(Protocol):
    """The live side of a run. Implemented by adapters; knows nothing of files."""

    def capture(self) -> Snapshot:
        """Return the state. Contents may still lie in the memory of the training (`Snapshot.is_live`):
        the engine copies them before it returns to it. Of rings only a part may be there (`Rows`)."""
        ...

    def skeleton(self) -> Snapshot:
        """Return the state without array contents and generator states: the birth document."""
        ...

    def plan(self, saved: Snapshot, *, keep: Sequence[str] = (), trusted: Trust = False) -> Graft:
        """Lay `saved` over the live objects. Touches nothing. At the places `keep` the live value
        stays (a setting that the user changed). Opaque parts are refused unless `trusted`."""
        ...

    def judge(self, change: Change) -> Verdict:
        """Say what becomes of something that the user changed. See `changes.usual_verdict`."""
        ...


# Optional abilities. The engine asks whether a source has them; none is assumed.


@runtime_checkable
class NamesVolatile(Protocol):
    """A source with leaves that hold wall-clock time."""

    def volatile(self, snapshot: Snapshot) -> frozenset[str]:
        """Return the places of a state that are left out when it is compared, with all below them."""
        ...


@runtime_checkable
class InspectsWeights(Protocol):
    """A source that finds NaN and infinity in weights."""

    def sick_places(self, snapshot: Snapshot) -> Mapping[str, str]:
        """Return the places of weights that are not all finite, each with its component. The engine
        leaves out those that the run began with. Called in the writer's thread: it looks at the
        snapshot only, never at live objects."""
        ...


@runtime_checkable
class CountsAlong(Protocol):
    """A source whose state says by itself how far it is."""

    def counts(self, saved: Snapshot) -> Mapping[str, int]:
        """Return what a saved state has counted, as far as it has: its `step`, its `episodes`. Reads it only."""
        ...


@runtime_checkable
class ForeseesSize(Protocol):
    """A source that knows how large the coming snapshots will be."""

    def expected_bytes(self) -> int:
        """Return the bytes that a save will have to copy; asked once, after the first capture."""
        ...


@runtime_checkable
class PrefersMoments(Protocol):
    """A source whose state is much cheaper to restore at some clean points than at others."""

    def is_good_moment(self) -> bool:
        """Return whether a save that will be due soon should be made at this clean point, since at those before
        it a restore would have taken long. No save is made later for a no. Never asked of several ranks."""
        ...


@runtime_checkable
class RemembersRows(Protocol):
    """A source that captures of its rings only what has changed since the newest durable checkpoint."""

    def committed(self, snapshot: Snapshot) -> None:
        """Build on `snapshot`, the one captured last: it is durable. Called in the writer's thread."""
        ...

    def restored(self, saved: Snapshot, now: Snapshot, *, different: Collection[str] = ()) -> None:
        """Build on `saved`, which was restored; `now` is what was captured since, and is not the same in
        the components `different`."""
        ...

    def audit(self, chunks_of: Callable[[Base], ChunkList], *, step: int) -> None:
        """Look whether live memory still holds what the checkpoint of `step`, the one `committed` last,
        says of rows that it did not capture. `chunks_of` gives the digests of a saved array's chunks. Called in
        the writer's thread, and reads only."""
        ...

    def forget(self) -> None:
        """Build on nothing: the next capture takes everything."""
        ...

    def release(self) -> None:
        """Take away whatever was put onto live objects. No capture follows."""
        ...


@runtime_checkable
class KeepsJournal(Protocol):
    """A source whose environments can be rebuilt from a journal."""

    def keep_journal(self) -> None:
        """From the next capture on have an entry with each snapshot (`Snapshot.journal`), and be able to rebuild."""
        ...

    def rebuilt(self, saved: Snapshot, entry: JournalEntry, *, trusted: Trust = False) -> Component:
        """Return the component that stands for the environments, rebuilt from an entry; `saved` is all the rest of
        that state. Touches no live object.

        Raises:
            CorruptObject: it cannot be rebuilt, or comes out differently than it was saved.
        """
        ...


@runtime_checkable
class Undresses(Protocol):
    """A source that puts something of its own onto live objects, and can take it away for a while."""

    def undress(self) -> None:
        """Leave the objects as the script has built them, as far as that goes; build on nothing. A restore follows."""
        ...


@runtime_checkable
class Branches(Protocol):
    """A source whose generators can go on with other streams than those that were saved."""

    def branch(self, salt: bytes) -> None:
        """Give every generator a stream that follows from its present state and from `salt`."""
        ...


@runtime_checkable
class KnowsThreads(Protocol):
    """A source whose framework computes on threads of its own."""

    def threads(self) -> Mapping[str, str]:
        """Return what the numbers of threads are, by name."""
        ...


@runtime_checkable
class SpeaksPlainly(Protocol):
    """A source that knows by which word a person has set what stands at a place."""

    def reword(self, place: str, words: Words) -> Words:
        """Return the words on a change, or on what does not fit, in those of the framework's user."""
        ...
