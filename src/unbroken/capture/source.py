"""A source over a dict of live objects: what the engine captures, plans and restores.

Which rules apply comes from the policies of the frameworks that the program has imported; importing one
here would cost seconds and change nothing.

Not promised: anything about objects that no root leads to.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from unbroken.capture import sizes
from unbroken.capture.audit import ChunksOf
from unbroken.capture.branching import branch_all
from unbroken.capture.environments import env_policy
from unbroken.capture.foresight import expected_bytes
from unbroken.capture.journal import Journal, rebuild, with_recordings
from unbroken.capture.ledger import Ledger
from unbroken.capture.made_later import MadeLater
from unbroken.capture.policies import default_policy
from unbroken.capture.replay_cost import Moments, Teller, tellers, total
from unbroken.capture.uncovered import environment_places, uncovered, warn_of
from unbroken.capture.volatile import volatile_places
from unbroken.capture.weights import not_finite
from unbroken.engine.changes import Change, Verdict, usual_verdict
from unbroken.state import graft, walk
from unbroken.state.pickles import Trust
from unbroken.state.policy import Policy
from unbroken.state.snapshot import Component, JournalEntry, Note, Promise, Snapshot, component_of
from unbroken.state.staging import own
from unbroken.types import Fidelity, worse

ENVIRONMENTS = "env_states"
MOST_REASONS = 3
_INEXACT = {
    "approximate": Fidelity.APPROXIMATE,
    "outside": Fidelity.APPROXIMATE,
    "not captured": Fidelity.NOT_CAPTURED,
}


def policy_of_loaded(*more: Policy) -> Policy:
    """Return the policies of every framework that is imported now, and `more`, as one."""
    return default_policy().merged(env_policy(), *more)


class GraftSource:
    """Implements `engine.source.Source` over the objects in `roots`, in their order.

    `facts` adds plain facts to every snapshot (learning rate, buffer rows, episodes). `judge` replaces
    the verdict on what a user changed. `promises` are what is known of components beforehand (the
    verdict of an environment's probe); what a walk finds can only lower them.
    """

    def __init__(
        self,
        roots: Mapping[str, object],
        policy: Policy,
        *,
        facts: Callable[[], Mapping[str, Any]] | None = None,
        judge: Callable[[Change], Verdict] | None = None,
        promises: Mapping[str, Promise] | None = None,
    ) -> None:
        self.roots = roots
        self.policy = policy
        self._facts = facts
        self._judge = judge
        self._promises = dict(promises or {})
        self._ledger = Ledger()
        self._expected = -1
        self._uncovered: list[Note] = []
        """What the program changes beside the state, as the first capture has found it."""
        self.scratch: list[object] = []
        """What the program changes and does not need again; let go when the first capture has looked at it."""
        self._replayed: list[Teller] = []
        """Who knows what a restore costs, of what the newest capture has met."""
        self._moments = Moments()
        self._made_later = MadeLater(policy)
        self._journal: Journal | None = None

    def capture(self) -> Snapshot:
        """Return the state, as `engine.source.Source` says. Of a ring only what is new since the newest
        durable checkpoint is in it."""
        self._ledger.begin()
        walked = walk.walk(self.roots, self.policy, ledger=self._ledger)
        snapshot = walked.snapshot
        self._ledger.end(snapshot)
        if self._expected < 0:
            self._expected = expected_bytes(snapshot, walked.met())
            self._uncovered = uncovered(walked, self.scratch)
            self.scratch = []
            warn_of([*snapshot.notes, *self._uncovered], environment_places(walked))
            self._made_later.heard(snapshot.notes)
        self._made_later.begin(walked)
        later = self._made_later.look(walked)
        self._made_later.warn([note for note in snapshot.notes if self._is_news(note, snapshot)], later)
        snapshot.notes += [*self._uncovered, *later]
        if self._facts is not None:
            snapshot.counters.update(self._facts())
        for name, promise in promises_of(snapshot).items():
            snapshot.promises[name] = worse(self._promises.get(name, promise), promise)
        # At every capture: environments come and go.
        self._replayed = tellers(walked.met())
        cost = total(self._replayed)
        if cost.environments:
            snapshot.notes.append(Note("replay", ENVIRONMENTS, str(cost)))
        if self._journal is not None:
            self._journal.begin(walked.met(), self.policy)  # environments come and go
            snapshot.journal = self._journal.entry(snapshot, self.roots, self.policy)
        return snapshot

    def keep_journal(self) -> None:
        """Record the environments from now on; see `engine.source.KeepsJournal`."""
        self._journal = Journal(ENVIRONMENTS)
        self._journal.begin(walk.walk(self.roots, self.policy, contents=False).met(), self.policy)

    def rebuilt(self, saved: Snapshot, entry: JournalEntry, *, trusted: Trust = False) -> Component:
        """Return the environments, rebuilt from an entry of the journal; see `engine.source.KeepsJournal`."""
        policy = self.policy

        def planned(joined: Snapshot) -> graft.Graft:
            self.policy = with_recordings(policy)
            return self.plan(joined, trusted=trusted)

        def captured() -> Snapshot:
            self.policy = policy
            return walk.walk(self.roots, policy).snapshot

        return rebuild(saved, entry, plan=planned, capture=captured)  # the policy changes in the copy only

    def _is_news(self, note: Note, snapshot: Snapshot) -> bool:
        """Whether it says more than what was promised before training of the component that it is about."""
        promise = (
            self._promises.get(component_of(note.place, snapshot)) if note.kind == "approximate" else None
        )
        return promise is None or promise.fidelity is Fidelity.EXACT

    def is_good_moment(self) -> bool:
        """Say whether a restore from here takes little, and would have taken long before; see `replay_cost`."""
        return self._moments.has_come(total(self._replayed))

    def expected_bytes(self) -> int:
        """Return how much memory the coming snapshots will take, by what the first capture has met."""
        return max(0, self._expected)

    def committed(self, snapshot: Snapshot) -> None:
        """Let the next capture build on `snapshot`, which was captured last and is durable now."""
        self._ledger.committed(snapshot)

    def restored(self, saved: Snapshot, now: Snapshot, *, different: Collection[str] = ()) -> None:
        """Let the next capture build on `saved`, which was restored; `now` was captured since, and is not
        the same in the components `different`."""
        self._ledger.restored(saved, now, different=different)
        if self._journal is not None:
            self._journal.interrupted()

    def audit(self, chunks_of: ChunksOf, *, step: int) -> None:
        """Look for rows that were changed behind a ring's back. See `audit`."""
        self._ledger.audit(chunks_of, step=step)

    def forget(self) -> None:
        """Let the next capture take everything."""
        self._ledger.forget()

    def undress(self) -> None:
        """Leave the live objects as they were before the first capture, until the next one."""
        self._ledger.begin_anew()

    def release(self) -> None:
        """Leave the live objects as they were before the first capture."""
        self._ledger.close()
        if self._journal is not None:
            self._journal.close()

    def skeleton(self) -> Snapshot:
        """Return the state without the contents of arrays and generators."""
        walked = walk.walk(self.roots, self.policy, contents=False)
        self._made_later.begin(walked)
        return own(walked.snapshot)

    def plan(self, saved: Snapshot, *, keep: Sequence[str] = (), trusted: Trust = False) -> graft.Graft:
        """Lay a saved state over the roots. Touches nothing."""
        return sizes.plan(saved, self.roots, self.policy, keep=keep, trusted=trusted)

    def judge(self, change: Change) -> Verdict:
        """Say what becomes of a change. Of an environment only what its constructors take is a setting;
        its other attributes are drawn anew at every start and belong to the checkpoint."""
        if self._judge is not None:
            return self._judge(change)
        if change.component == ENVIRONMENTS:
            return environment_verdict(change, setting_names(self.roots.values()))
        return usual_verdict(change)

    def volatile(self, snapshot: Snapshot) -> frozenset[str]:
        """Return the places of a state that hold wall-clock time."""
        return volatile_places(snapshot)

    def branch(self, salt: bytes) -> None:
        """Give every generator that the roots lead to a stream of its own; see `engine.source.Branches`."""
        branch_all(walk.walk(self.roots, self.policy).met(), salt)

    sick_places = staticmethod(not_finite)
    """A function by itself, so that another process can call it."""

    def threads(self) -> dict[str, str]:
        """Return the thread counts that PyTorch computes with, if it is in use."""
        torch = sys.modules.get("torch")
        if torch is None:
            return {}
        return {
            "torch threads": str(torch.get_num_threads()),
            "torch instruction set": str(torch.backends.cpu.get_cpu_capability()),
        }


def environment_verdict(change: Change, settings: frozenset[str]) -> Verdict:
    """Return the verdict on a change inside an environment whose constructors take `settings`."""
    if change.new_attribute:
        return Verdict.FRESH  # else it would be taken away, and the class that has it now needs it
    if change.kind == "structure":
        gone = change.birth is not None and change.now is not None and change.untouched
        return usual_verdict(change) if gone and change.name in ("env", "venv", *settings) else Verdict.SAVED
    return usual_verdict(change) if change.name.lstrip("_") in settings else Verdict.SAVED


def setting_names(roots: Iterator[object] | Sequence[object] | Any) -> frozenset[str]:
    """Return the names of all arguments that the constructors of environments and wrappers take."""
    found: set[str] = set()
    for root in roots:
        layer: Any = root
        for _ in range(64):
            if not (hasattr(layer, "reset") and hasattr(layer, "step")):
                break
            found |= _arguments(type(layer))
            inner = getattr(layer, "__dict__", {})
            for vectored in inner.get("envs") or ():
                found |= setting_names([vectored])
            layer = inner.get("env", inner.get("venv"))
    return frozenset(found)


def _arguments(cls: type) -> set[str]:
    names: set[str] = set()
    for base in cls.__mro__[:-1]:
        if "__init__" in base.__dict__:
            names |= inspect.signature(base.__dict__["__init__"]).parameters.keys()
    return names - {"self", "args", "kwargs", "env"}


def promises_of(snapshot: Snapshot) -> dict[str, Promise]:
    """Return what each component promises: exact, unless a note says otherwise of something in it."""
    found = {name: Promise(Fidelity.EXACT) for name in snapshot.components}
    reasons: dict[tuple[str, Fidelity], list[str]] = {}
    for note in snapshot.notes:
        fidelity = _INEXACT.get(note.kind)
        if fidelity is not None:
            name = component_of(note.place, snapshot)
            reasons.setdefault((name, fidelity), []).append(f"{note.place}: {note.detail}")
    for (name, fidelity), why in reasons.items():
        more = f"; and {len(why) - MOST_REASONS} more" if len(why) > MOST_REASONS else ""
        found[name] = worse(found[name], Promise(fidelity, "; ".join(why[:MOST_REASONS]) + more))
    return found
