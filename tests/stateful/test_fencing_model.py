"""Two and three processes that take a run from each other, in every order: the real code, searched to the end.

The claims, in the words of the specification (docs/format.md, section 8):

- *acknowledged means kept*: a commit that its writer was told of is seen by every later reader, and by every
  process that takes the run over later;
- *stale means inert*: once a process has read what it goes on from, no other commit of an earlier epoch ever
  counts;
- epochs never alternate in the order of commits, no number counts twice, and what counts is whole.

They are looked at after every change of the store. Mistakes that were put into the protocol are found: a search
that finds nothing in the code proves little if it would find nothing in wrong code either.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from unbroken.errors import AmbiguousCommit, Fenced, StoreError
from unbroken.format import layout
from unbroken.format.compression import Compression
from unbroken.format.digest import digest_of
from unbroken.format.records import Commit
from unbroken.repo import fencing, log, names, repository, run_writer
from unbroken.repo.attempt import Attempt
from unbroken.repo.blobs import BlobIndex
from unbroken.repo.log import CommitLog, read_log
from unbroken.repo.pen import Pen
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.repo.run_writer import RunWriter
from unbroken.repo.seal import seal
from unbroken.repo.writer import CheckpointWriter
from unbroken.store.memory import MemoryStore
from unbroken.types import Epoch, Sequence, Step, WriteId

from ..repo.states import clock, meta, process, snapshot, tokens  # noqa: TID252 - tests are no installed package
from .interleaving import Actor, Body, Found, Search

KINDS = frozenset({"lost", "late", "twice", "stale"})


@dataclass
class Ledger:
    """What the processes of one schedule were told, against which the run is held."""

    told: dict[WriteId, Epoch] = field(default_factory=dict[WriteId, Epoch])
    dropped: set[WriteId] = field(default_factory=set[WriteId])
    begun: dict[Epoch, frozenset[WriteId]] = field(default_factory=dict[Epoch, frozenset[WriteId]])
    """What each process that has taken the run goes on from."""
    landed: set[WriteId] = field(default_factory=set[WriteId])
    born_inert: set[WriteId] = field(default_factory=set[WriteId])
    """Commits that were hidden by a start from the first."""
    whole: bool = True
    """Whether the checkpoints have contents."""

    def look(self, store: MemoryStore, over: bool) -> None:
        found = log.read_log(store)
        commits = found.commits
        seen = {commit.write_id: commit for commit in commits}
        hidden = {commit.write_id for commit in found.stale}
        self.born_inert |= hidden - self.landed
        self.landed |= hidden | seen.keys()
        missing = self.told.keys() - seen.keys() - self.dropped
        assert not missing, f"acknowledged and lost: {missing}"
        for epoch, went_on in self.begun.items():
            stale = {w for w, c in seen.items() if c.epoch < epoch} - went_on
            assert not stale, f"epoch {epoch} did not go on from {stale}, and they count"
            gone = went_on - seen.keys() - self.dropped
            assert not gone, f"epoch {epoch} went on from {gone}, which is lost"
        rising = [commit.epoch for commit in reversed(commits)]
        assert rising == sorted(rising), f"epochs alternate: {rising}"
        if over and self.whole:
            opened = Repository(store, "job")
            for commit in commits:
                assert opened.verify(commit) == [], f"what counts is not whole: {commit}"

    def begins(self, epoch: Epoch, commits: Collection[Commit]) -> None:
        there = frozenset(commit.write_id for commit in commits)
        missing = {w for w, e in self.told.items() if e < epoch} - there - self.dropped
        assert not missing, f"epoch {epoch} does not see what was acknowledged before: {missing}"
        self.begun[epoch] = there


def writes(ledger: Ledger, saves: int, *, keep_last: int | None = None) -> Body:
    """A process that takes the run, looks from where it goes on, and saves."""

    def live(actor: Actor) -> None:
        with contextlib.suppress(Fenced, StoreError, AmbiguousCommit):
            opened = Repository(actor.store, "job")
            owned = opened.writer(
                owner=process(actor.number + 1), token=tokens(actor.number + 1), clock=clock
            )
            ledger.begins(owned.epoch, opened.commits())
            for step in range(saves):
                with contextlib.suppress(StoreError):  # training goes on, and the next save comes
                    commit = owned.write(snapshot(bytes([step])), meta(step))
                    ledger.told[commit.write_id] = commit.epoch
                    if keep_last is not None:
                        plan = plan_retention(opened.commits(), keep_last=keep_last)
                        ledger.dropped.update(c.write_id for c in plan.dropped)
                        owned.retain(plan)

    return live


def commits(ledger: Ledger, saves: int = 1, *, holds: fencing.Claim | None = None) -> Body:
    """What decides, and nothing else: claim, look, start, look from where to go on, commit.

    One that `holds` an epoch has done all but the last before.
    """

    def live(actor: Actor) -> None:
        number, store = actor.number + 1, actor.store
        with contextlib.suppress(Fenced, StoreError, AmbiguousCommit):
            claim, first = holds, HELD
            if claim is None:
                claim = fencing.claim(store, token=tokens(number), owner=process(number), job="job", time=0.0)
                first = fencing.start(store, claim, last=vars(run_writer)["read_log"](store).last)
                ledger.begins(claim.epoch, log.read_log(store).commits)
            owned = CheckpointWriter(
                store,
                "job",
                BlobIndex(store),
                Pen(claim, process(number), first, "json", set(), set()),
                compression=Compression(),
                clock=clock,
                token=tokens(number),
                signing_key=lambda: None,
            )
            for step in range(1, saves + 1):
                order = owned.order(meta(step))
                with contextlib.suppress(StoreError):  # training goes on, and the next save comes
                    made = owned._commit(Attempt(order), record(order.write_id, epoch=claim.epoch, step=step))
                    ledger.told[made.write_id] = claim.epoch

    return live


def record(write_id: WriteId, *, epoch: Epoch, step: int, sequence: int = 0) -> Commit:
    """A commit without contents."""
    return Commit(
        sequence=Sequence(sequence),
        step=Step(step),
        segment=0,
        epoch=epoch,
        write_id=write_id,
        directory=layout.checkpoint(Step(step), write_id),
        manifest_digest=digest_of(b""),
        time=0.0,
        good=True,
        position="step",
        metrics={},
        birth="",
    )


def taken_over_once() -> tuple[MemoryStore, fencing.Claim]:
    """A run that epoch 2 holds; a late commit of epoch 1 is inert and lies ahead of the numbers that count."""
    store = MemoryStore()
    claims: list[fencing.Claim] = []
    for number in (91, 92):
        claim = fencing.claim(store, token=tokens(number), owner=process(number), job="job", time=0.0)
        fencing.start(store, claim, last=log.read_log(store).last)
        claims.append(claim)
        if number == 91:
            kept = record(names.write_id("0" * 12, claim.epoch), epoch=claim.epoch, step=1, sequence=1)
            store.put(layout.commit(kept.sequence), seal(kept))
    late = record(names.write_id("1" * 12, Epoch(1)), epoch=Epoch(1), step=2, sequence=HELD + 2)
    store.put(layout.commit(late.sequence), seal(late))
    return store, claims[-1]


HELD = Sequence(2)
"""The number that the next commit of the process gets that holds `taken_over_once`."""


def reads(ledger: Ledger) -> Body:
    """A process that only looks, over several requests of its own."""

    def live(actor: Actor) -> None:
        before = dict(ledger.told)
        seen = {commit.write_id for commit in Repository(actor.store, "job").commits()}
        missing = before.keys() - seen - ledger.dropped
        assert not missing, f"a reader misses {missing}"
        stale = seen & ledger.born_inert
        assert not stale, f"a reader counts {stale}"

    return live


def search(*processes: Callable[[Ledger], Body], **how: Any) -> Search:
    """Search all orders of processes that save whole checkpoints of one run."""
    store = MemoryStore()
    first = Repository.over(store, "job", create=True).writer(owner=process(9), token=tokens(9))
    first.write(snapshot(b"first"), meta(0))
    return Search(_scenario(processes, whole=True), store, **how).run()


def search_commits(new: int, *, saves: int = 1, reader: bool = False, **how: Any) -> Search:
    """Search all orders of one that holds the run, of `new` ones that take it, and of one that looks."""
    store, claim = taken_over_once()
    processes: list[Callable[[Ledger], Body]] = [lambda ledger: commits(ledger, saves, holds=claim)]
    processes += [lambda ledger: commits(ledger, saves) for _ in range(new)]
    processes += [reads] if reader else []
    return Search(_scenario(processes, whole=False), store, deletes=False, **how).run()


def _scenario(
    processes: Collection[Callable[[Ledger], Body]], *, whole: bool
) -> Callable[[], tuple[list[Body], Callable[[MemoryStore, bool], None]]]:
    def scenario() -> tuple[list[Body], Callable[[MemoryStore, bool], None]]:
        ledger = Ledger(whole=whole)
        return [make(ledger) for make in processes], ledger.look

    return scenario


def saves(count: int, *, keep_last: int | None = None) -> Callable[[Ledger], Body]:
    return lambda ledger: writes(ledger, count, keep_last=keep_last)


class TestEveryOrder:
    """Each search ends because nothing is left to try, and says how much that was."""

    def test_one_holds_the_run_and_one_takes_it(self) -> None:
        found = search_commits(1, saves=2)
        assert not found.cut_off
        assert found.schedules > 80

    def test_one_looks_while_the_run_changes_hands(self) -> None:
        found = search_commits(1, reader=True, switches=1)
        assert not found.cut_off
        assert found.schedules > 150

    def test_any_answer_is_lost_any_request_comes_late_or_twice_any_listing_lags(self) -> None:
        found = search_commits(1, faults=1, kinds=KINDS)
        assert not found.cut_off
        assert found.schedules > 1000

    def test_two_take_it_from_a_third_and_two_are_interrupted(self) -> None:
        found = search_commits(2, switches=1)
        assert not found.cut_off
        assert found.schedules > 100

    def test_whole_checkpoints_are_saved_and_deleted_while_the_run_changes_hands(self) -> None:
        found = search(saves(2, keep_last=1), saves(1, keep_last=1), switches=1)
        assert not found.cut_off
        assert found.schedules > 100

    def test_a_commit_that_lands_after_its_save_has_failed_is_whole_or_inert(self) -> None:
        """The store says nothing and writes the record later: its blobs must not have been swept by then."""
        found = search(saves(3, keep_last=2), switches=0, faults=1, kinds=frozenset({"late", "lost"}))
        assert not found.cut_off
        assert found.schedules > 100


@pytest.mark.exactness
class TestEveryOrderAtLength:
    def test_three_processes_four_of_whose_turns_are_cut_short(self) -> None:
        assert not search_commits(2, switches=4).cut_off

    def test_one_looks_and_nothing_is_limited(self) -> None:
        assert not search_commits(1, reader=True).cut_off

    def test_two_things_go_wrong(self) -> None:
        assert not search_commits(1, faults=2, kinds=KINDS).cut_off

    def test_whole_checkpoints_and_two_interruptions(self) -> None:
        assert not search(saves(2, keep_last=1), saves(1, keep_last=1), switches=2).cut_off


def lists_before_it_claims(patch: pytest.MonkeyPatch) -> None:
    """A commit that is acknowledged between the two is declared void."""
    held: dict[int, CommitLog] = {}
    claim = fencing.claim

    def early(store: Any, **about: Any) -> fencing.Claim:
        held[id(store)] = read_log(store)
        return claim(store, **about)

    def late(store: Any, **about: Any) -> CommitLog:
        return held.pop(id(store), None) or read_log(store, **about)

    patch.setattr(fencing, "claim", early)
    patch.setattr(run_writer, "read_log", late)


def acknowledges_without_a_look(patch: pytest.MonkeyPatch) -> None:
    """Who was overtaken while the record was being written is told that it counts."""

    def commit(self: CheckpointWriter, attempt: Attempt, made: Commit) -> Commit:
        fencing.check(self.store, self.claim)
        taken = False
        while not taken:
            made = msgspec.structs.replace(made, sequence=self._next)
            self._next = Sequence(self._next + 1)
            taken = self._publish(attempt, layout.commit(made.sequence), seal(made))
        return made

    patch.setattr(CheckpointWriter, "_commit", commit)


def counts_what_lies_there(patch: pytest.MonkeyPatch) -> None:
    """A reader that does not look at starts counts late commits."""
    patch.setattr(fencing.Epochs, "hidden_by", lambda *_: None)


def starts_above_what_is_inert(patch: pytest.MonkeyPatch) -> None:
    """The one that is overtaken has a smaller number left, below the start."""

    def last(self: CommitLog) -> int:
        return max([0, *(commit.sequence for commit in (*self.commits, *self.stale))])

    patch.setattr(CommitLog, "last", property(last))


def leaves_epochs_open(patch: pytest.MonkeyPatch) -> None:
    """One that claimed and slept starts later, and declares void what was committed since."""
    create, start = fencing.create_only, fencing.start
    own: dict[int, str] = {}

    def only_own(store: Any, key: str, data: bytes, **how: Any) -> bool:
        if key.endswith(".start.json") and own.get(id(store)) != key:
            return True
        return create(store, key, data, **how)

    def begin(store: Any, claim: fencing.Claim, *, last: Sequence) -> Sequence:
        own[id(store)] = layout.epoch_start(claim.epoch)
        return start(store, claim, last=last)

    patch.setattr(fencing, "create_only", only_own)
    patch.setattr(fencing, "start", begin)


def reads_starts_before_commits(patch: pytest.MonkeyPatch) -> None:
    """A late commit is listed, and the start that hides it was not there yet."""

    def read(store: Any, **_: Any) -> CommitLog:
        epochs = fencing.read_epochs(store)
        found = read_log(store)
        both = sorted((*found.commits, *found.stale), key=lambda commit: -commit.sequence)
        hidden = {commit.sequence for commit in both if epochs.hidden_by(commit, both) is not None}
        return CommitLog(
            tuple(c for c in both if c.sequence not in hidden),
            tuple(c for c in both if c.sequence in hidden),
            found.broken,
        )

    patch.setattr(repository, "read_log", read)


def sweeps_under_a_commit_in_doubt(patch: pytest.MonkeyPatch) -> None:
    """A record lands whose blobs are gone."""
    patch.setattr(RunWriter, "lose_pen", lambda _self: None)


MISTAKES: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[[], Search], str]] = {
    "lists-before-it-claims": (
        lists_before_it_claims, lambda: search_commits(1), "acknowledged and lost|does not see"
    ),
    "acknowledges-without-a-look": (
        acknowledges_without_a_look, lambda: search_commits(1), "acknowledged and lost|does not see"
    ),
    "counts-what-lies-there": (counts_what_lies_there, lambda: search_commits(1), "count|alternate"),
    "starts-above-what-is-inert": (starts_above_what_is_inert, lambda: search_commits(1), "count|alternate"),
    "leaves-epochs-open": (leaves_epochs_open, lambda: search_commits(2, switches=2), "lost|does not see|count"),
    "reads-starts-before-commits": (
        reads_starts_before_commits, lambda: search_commits(1, reader=True, switches=3), "a reader counts"
    ),
    "sweeps-under-a-commit-in-doubt": (
        sweeps_under_a_commit_in_doubt,
        lambda: search(saves(3, keep_last=2), switches=0, faults=1, kinds=frozenset({"late"})),
        "is not whole",
    ),
}  # fmt: skip
"""What is done wrong, where to look for what comes of it, and what that is called."""
DEEP = {"leaves-epochs-open", "reads-starts-before-commits"}
"""Those that are found only after many hundred orders."""


@pytest.mark.parametrize(
    "mistake",
    [pytest.param(name, marks=pytest.mark.exactness if name in DEEP else ()) for name in sorted(MISTAKES)],
)
def test_a_mistake_in_the_protocol_is_found(monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    patch, look, called = MISTAKES[mistake]
    patch(monkeypatch)
    with pytest.raises(Found, match=called):
        look()
