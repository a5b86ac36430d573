"""The journal of a run: written beside its checkpoints, and the third tier of recovery.

If everything of a checkpoint but its environments can be read, they are rebuilt from its entry in the journal.
The result is the state that was saved, or it is refused with a reason and the recovery falls on.

Not promised: an entry for every checkpoint. One that cannot be written is said once, and costs no save.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from unbroken.engine.recovery import Rebuilder, of_segment
from unbroken.engine.saving import Carry, Committed, Outcome
from unbroken.engine.settings import Settings
from unbroken.engine.source import KeepsJournal, Source
from unbroken.engine.world import World
from unbroken.errors import CorruptObject, ObjectMissing, StoreError
from unbroken.format.journal import Moment
from unbroken.format.meta import Meta
from unbroken.format.records import Commit
from unbroken.repo import journal
from unbroken.repo.log import read_log
from unbroken.repo.repository import Repository
from unbroken.state.pickles import Trust
from unbroken.state.snapshot import JournalEntry, Snapshot
from unbroken.store.base import ByteStore
from unbroken.types import Digest

ENVIRONMENTS = "env_states"
NOT_KEPT = "no rollouts were recorded (journal=True records them)"


class JournalWarning(UserWarning):
    """An entry of the journal could not be written. Every checkpoint is as it should be."""


class JournalKeeper:
    """Writes an entry beside each checkpoint of one run, in the writer's thread."""

    def __init__(self, store: ByteStore) -> None:
        self.problem = ""
        """Why the newest entry that failed was not written; empty if none failed."""
        self._store = store
        self._said = False

    def beside(self, carry: Carry, snapshot: Snapshot, meta: Meta) -> Carry:
        """Return what carries a save out together with its entry."""
        entry = snapshot.journal
        if entry is None:
            return carry

        def both(committed: Committed) -> Outcome:
            moment = Moment(meta.step, meta.segment, meta.position, meta.time)
            try:
                journal.write(self._store, moment, entry.component, state=entry.state, problem=entry.problem)
            except StoreError as error:
                self.problem = str(error)
            outcome = carry(committed)
            try:
                journal.sweep(self._store, read_log(self._store).commits)
            except StoreError as error:
                self.problem = str(error)
            return outcome

        return both

    def say(self) -> None:
        """Warn, once, if an entry could not be written. To be called by the training's thread."""
        if self.problem and not self._said:
            self._said = True
            warnings.warn(f"The journal is not complete: {self.problem}", JournalWarning, stacklevel=4)


class FromJournal:
    """A `Rebuilder` over a run's journal, for one segment."""

    name = "journal"

    def __init__(
        self, repository: Repository, source: KeepsJournal, settings: Settings, segment: int
    ) -> None:
        self.base: Commit | None = None
        self.passed_over: tuple[str, ...] = ()
        self._repository = repository
        self._source = source
        self._settings = settings
        self._segment = segment

    def available(self) -> str:
        """Return why nothing can be rebuilt, or an empty string."""
        return "" if journal.is_there(self._repository.store) else "the run has no journal yet"

    def rebuild(self) -> tuple[Snapshot, int]:
        """Return the newest state that can be rebuilt, and its step. Touches no live object.

        Raises:
            CorruptObject: none can; the message says of each why.
        """
        reasons: list[str] = []
        for commit in of_segment(self._repository.commits(), self._segment):
            try:
                state = self._rebuilt(commit)
            except (CorruptObject, ObjectMissing) as error:
                reasons.append(
                    f"from the journal, commit {commit.sequence} (step {commit.step:,}): {error.message}"
                )
            else:
                self.base, self.passed_over = commit, tuple(reasons)
                return state, commit.step
        raise CorruptObject(_told(reasons))

    def _rebuilt(self, commit: Commit) -> Snapshot:
        repository = self._repository
        if not commit.good:
            raise CorruptObject("its weights hold NaN or infinite values.")
        record, component = journal.read(repository.store, commit)
        if record.problem:
            raise CorruptObject(f"its entry in the journal says nothing: {record.problem}")
        manifest = repository.manifest(commit)
        names = [entry.component for entry in manifest.documents.values()]
        saved = repository.load(commit, [name for name in names if name != component.name])
        entry = JournalEntry(component, Digest(record.state))
        rebuilt = self._source.rebuilt(saved, entry, trusted=trust_in(repository, commit, self._settings))
        # In the order of the checkpoint, as every restore has them.
        parts = {**saved.components, component.name: rebuilt}
        saved.components = {name: parts[name] for name in names if name in parts}
        saved.recheck = None  # it would ask for the digests of what was rebuilt
        return saved


def rebuilder_of(
    repository: Repository, source: Source, settings: Settings, world: World | None, *, segment: int
) -> Rebuilder | None:
    """Return what rebuilds environments from the journal, None where none is kept; `source` keeps one from now on.

    Of several ranks none does: what one has recorded says nothing of the others.
    """
    if not settings.journal or world is not None or not isinstance(source, KeepsJournal):
        return None
    source.keep_journal()
    return FromJournal(repository, source, settings, segment)


def trust_in(repository: Repository, commit: Commit, settings: Settings) -> Trust:
    """Return which pickled parts of a checkpoint may be loaded."""
    if settings.trust is True or repository.signature_valid(commit) is True:
        return True
    return False if isinstance(settings.trust, bool) else frozenset(settings.trust)


def _told(reasons: Sequence[str]) -> str:
    return "; ".join(reasons) if reasons else "the journal has no entry that belongs to a checkpoint."
