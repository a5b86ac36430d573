"""Epochs: which process may write to a run, and which commits count.

A process that wants to write claims the next epoch with a create-only record, *then* looks at the
commits, *then* records create-only from which sequence number on the run is its own (its start). In
the other order a commit that was already acknowledged could be declared void. A commit of a smaller
epoch at or beyond that start is inert: no reader counts it. So a writer that was thought dead and
wakes up can disturb nobody, whatever clocks and locks say.

Epoch records are never deleted, and the claims have no gaps: whether somebody came later is told by
one exact name, which also holds on file systems whose listings lag behind.

Not promised: that two processes never run at once. The later one wins, the earlier one finds out at
its next commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from unbroken.errors import CorruptObject, Fenced, ObjectBlocked, ObjectMissing, StoreError, UnsupportedFormat
from unbroken.format import layout
from unbroken.format.records import Commit, EpochRecord, EpochStart, LowWater
from unbroken.repo import names
from unbroken.repo.fault import ObjectFault
from unbroken.repo.process import Process
from unbroken.repo.seal import seal, unseal
from unbroken.store.base import ByteStore, exists
from unbroken.types import Epoch, Sequence, WriteId


class Numbered(Protocol):
    """What was saved under a claim: a commit, or a record of one."""

    @property
    def epoch(self) -> Epoch: ...

    @property
    def sequence(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to write, as long as no later epoch was claimed."""

    epoch: Epoch
    write_id: WriteId


@dataclass(frozen=True, slots=True)
class Epochs:
    """The epochs of a run: the highest claimed, and where each that has started begins.

    `damaged` have a start record that cannot be read.
    """

    highest: Epoch
    starts: Mapping[Epoch, Sequence]
    damaged: Mapping[Epoch, ObjectFault]

    def hidden_by(self, commit: Numbered, among: Iterable[Commit] = ()) -> Epoch | None:
        """Return an epoch that makes `commit` inert, or None if the commit counts.

        Where a start record is damaged, the first of that epoch's own commits in `among` stands in
        for it: the start was not later.
        """
        for epoch, first in self.starts.items():
            if epoch > commit.epoch and first <= commit.sequence:
                return epoch
        for other in among if self.damaged else ():
            if (
                other.epoch in self.damaged
                and commit.epoch < other.epoch
                and other.sequence <= commit.sequence
            ):
                return other.epoch
        return None


def read_epochs(store: ByteStore, *, known: dict[Epoch, Sequence] | None = None) -> Epochs:
    """Read all epoch records that say what counts. `known` spares reading again those that never change.

    Commits must have been listed before: a start that is written after the listing cannot be missed then.
    """
    numbers = _numbers(store)
    starts: dict[Epoch, Sequence] = {}
    damaged: dict[Epoch, ObjectFault] = {}
    for number in sorted(numbers):
        if known is not None and number in known:
            starts[number] = known[number]
            continue
        key = layout.epoch_start(number)
        try:
            record = unseal(store.get(key), EpochStart, key=key)
            if record.epoch != number:
                raise CorruptObject(f"{key} speaks of epoch {record.epoch}.", key=key)
            starts[number] = record.first
        except ObjectMissing:
            continue  # claimed, and not started yet
        except (CorruptObject, UnsupportedFormat) as error:
            damaged[number] = ObjectFault("", key, "", error.message)
    highest = max(numbers, default=Epoch(0))
    if known is not None:
        known.update(starts)
    return Epochs(highest, starts, damaged)


def _numbers(store: ByteStore) -> set[Epoch]:
    """Return the epochs that were claimed. A listing may lag behind; what comes next is asked for by name."""
    # Where somebody has removed the claim of an epoch, its start still says that it was taken.
    found = {layout.epoch_number(key) or names.epoch_start_number(key) for key in store.list(layout.EPOCHS)}
    numbers = {number for number in found if number is not None}
    following = Epoch(max(numbers, default=0) + 1)
    while exists(store, layout.epoch(following)):
        numbers.add(following)
        following = Epoch(following + 1)
    return numbers


def _put_if_absent(store: ByteStore, key: str, data: bytes) -> bool:
    return store.put_if_absent(key, data)


def highest(store: ByteStore) -> Epoch:
    """Return the newest epoch that was claimed, 0 if none was."""
    return Epoch(max(_numbers(store), default=0))


def claim(store: ByteStore, *, token: Callable[[], str], owner: Process, job: str, time: float) -> Claim:
    """Claim the next epoch. From here on every earlier writer is fenced at its next commit."""
    number = Epoch(read_epochs(store).highest + 1)
    while (claimed := _claim(store, number, token=token, owner=owner, job=job, time=time)) is None:
        number = Epoch(number + 1)
    return claimed


def succeed(
    store: ByteStore, claim: Claim, *, token: Callable[[], str], owner: Process, job: str, time: float
) -> Claim:
    """Claim the epoch after one's own: whatever is still on its way under `claim` will not count.

    Raises:
        Fenced: another process has claimed it.
    """
    claimed = _claim(store, Epoch(claim.epoch + 1), token=token, owner=owner, job=job, time=time)
    if claimed is None:
        raise _fenced(store, claim)
    return claimed


def _claim(
    store: ByteStore, number: Epoch, *, token: Callable[[], str], owner: Process, job: str, time: float
) -> Claim | None:
    write_id = names.write_id(token(), number)
    record = EpochRecord(
        job=job,
        **owner.as_owner(),
        time=time,
        epoch=number,
        write_id=write_id,
    )
    return Claim(number, write_id) if create_only(store, layout.epoch(number), seal(record)) else None


def start(store: ByteStore, claim: Claim, *, last: Sequence) -> Sequence:
    """Record and return the first sequence number of this epoch.

    `last` is the highest number that counted when the commits were read *after* the claim. Numbers of
    inert commits are no reason to start higher: the writer that was overtaken may still be about to
    commit under one below them, and that commit must be inert, too.

    Earlier epochs that claimed and never started are closed with the same number: one that wakes up
    later must not declare void what was committed since.

    Raises:
        Fenced: a later process has claimed the run meanwhile.
    """
    epochs = read_epochs(store)
    lower = [first - 1 for epoch, first in epochs.starts.items() if epoch < claim.epoch]
    first = Sequence(max([last, *lower, low_water(store) - 1]) + 1)
    unstarted = [
        Epoch(number)
        for number in range(1, claim.epoch)
        if number not in epochs.starts and number not in epochs.damaged
    ]
    for epoch in (*unstarted, claim.epoch):
        record = EpochStart(epoch=epoch, first=first, write_id=claim.write_id)
        if not create_only(store, layout.epoch_start(epoch), seal(record)) and epoch == claim.epoch:
            raise _fenced(store, claim)
    check(store, claim)
    return first


def check(store: ByteStore, claim: Claim) -> None:
    """Raise `Fenced` if a later epoch was claimed."""
    if exists(store, layout.epoch(Epoch(claim.epoch + 1))):
        raise _fenced(store, claim)


def is_here(store: ByteStore, claim: Claim) -> bool:
    """Whether the run in `store` is the one that was claimed: another process may see another place."""
    key = layout.epoch(claim.epoch)
    try:
        return unseal(store.get(key), EpochRecord, key=key).write_id == claim.write_id
    except (ObjectMissing, CorruptObject, UnsupportedFormat):
        return False


def low_water(store: ByteStore) -> Sequence:
    """Return the number below which commits may have been deleted; 1 if none was."""
    try:
        return unseal(store.get(layout.LOW_WATER), LowWater, key=layout.LOW_WATER).sequence
    except ObjectMissing:
        return Sequence(1)
    except CorruptObject:
        # It only keeps numbers from being used twice, and starts and commits say nearly the same.
        return Sequence(1)


def create_only(
    store: ByteStore, key: str, data: bytes, *, put: Callable[[ByteStore, str, bytes], bool] = _put_if_absent
) -> bool:
    """Write an object that must not exist yet; return whether it now holds exactly `data`.

    A store can write and lose the answer. So after a refusal or a failure the object is read back:
    the content holds a write id, and equal bytes are ours.

    Raises:
        StoreError: it was not written.
    """
    try:
        if put(store, key, data):
            return True
    except StoreError:
        try:
            return store.get(key) == data
        except (ObjectMissing, ObjectBlocked):
            pass
        raise
    try:
        return store.get(key) == data
    except ObjectBlocked:
        return False  # the name is taken, by nothing of ours


def _fenced(store: ByteStore, claim: Claim) -> Fenced:
    key = layout.epoch(Epoch(claim.epoch + 1))
    try:
        record = unseal(store.get(key), EpochRecord, key=key)
        who = f"process {record.pid} on {record.host}"
    except (CorruptObject, UnsupportedFormat, ObjectMissing):
        who = "another process"
    return Fenced(
        f"The run was taken over by {who}; this process may no longer write to it.",
        key=key,
        epoch=claim.epoch + 1,
    )
