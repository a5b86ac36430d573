"""Environments as a journal has them: by the actions since their last reset, where they can be replayed.

With a journal every environment in this process gets a recorder, also one whose attributes show all of its
state. Twice at each save the state is walked: as the checkpoint has it, and with the recordings in the place of
the environments. From the latter the former is rebuilt, in a copy of the process: a replay that comes out
differently, or to another state than was saved, is found there, before anything live is touched.

Environments whose emulator has a capture of its own, or a capturer of the user's, stand in the journal as in
the checkpoint. One that is captured by replay anyway has one recorder for both.

Not promised: environments in worker processes; a training whose state lies on a GPU, since a copy of the process
cannot reach it; an episode of which the recorder did not see the reset.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from unbroken.capture import ale, registry
from unbroken.capture.fork import Unanswered, ask_copy
from unbroken.capture.replay import JOURNAL_POLICY, Recorder
from unbroken.errors import CorruptObject, InternalError
from unbroken.format import journal
from unbroken.format.journal import fingerprint
from unbroken.state import walk
from unbroken.state.graft import Graft
from unbroken.state.policy import Policy
from unbroken.state.snapshot import Component, JournalEntry, Snapshot
from unbroken.state.staging import own

TIMEOUT = 600.0
"""Seconds that a copy of the process may take to rebuild the environments."""

_UNTOLD = frozenset({"approximate", "outside", "not captured", "opaque"})


class Journal:
    """Keeps recorders on the environments below some roots, and writes them down."""

    def __init__(self, component: str) -> None:
        self._component = component
        self._recorders: list[Recorder] = []

    def begin(self, met: Iterator[object], policy: Policy) -> None:
        """Put a recorder on each environment that the walk of the state has met and that has none."""
        for env in met:
            if _is_base(env) and not _has_own_way(env):
                recorder = Recorder(env, for_journal=True)
                recorder.beside = next((c for rule in policy.captors if (c := rule(env)) is not None), None)
                recorder.install()
                self._recorders.append(recorder)

    def interrupted(self) -> None:
        """Take note that the environments were restored: what was recorded does not lead to where they are."""
        for recorder in self._recorders:
            recorder.interrupted()

    def close(self) -> None:
        """Leave the environments as they were found."""
        for recorder in self._recorders:
            recorder.remove()
        self._recorders.clear()

    def entry(self, snapshot: Snapshot, roots: Mapping[str, object], policy: Policy) -> JournalEntry | None:
        """Return what the environments of `snapshot`, which was captured just now, can be rebuilt from; None
        where there are none."""
        saved = snapshot.components.get(self._component)
        if saved is None:
            return None
        try:
            state = fingerprint(saved)
            walked = walk.walk(roots, with_recordings(policy))
        except InternalError as error:
            return JournalEntry(Component(self._component), fingerprint(Component("")), str(error))
        component = walked.snapshot.components[self._component]
        alone = own(Snapshot(components={self._component: component}))
        notes = [n for n in walked.snapshot.notes if n.kind in _UNTOLD and _is_in(n.place, component)]
        problem = f"{notes[0].place}: {notes[0].detail}" if notes else ""
        if not problem and not any(map(_is_base, walked.met())):
            problem = "the environments live in other processes"
        return JournalEntry(alone.components[self._component], state, problem)


def rebuild(
    saved: Snapshot,
    entry: JournalEntry,
    *,
    plan: Callable[[Snapshot], Graft],
    capture: Callable[[], Snapshot],
) -> Component:
    """Return the environments as they were saved, rebuilt in a copy of this process, which then ends.

    `saved` is the rest of the state. `plan` lays a state with recordings over the live objects, `capture` takes
    the state as a checkpoint has it; both are called in the copy only.

    Raises:
        CorruptObject: they cannot be rebuilt, or come out differently.
    """
    name = entry.component.name

    def question() -> str:
        joined = Snapshot(components={**saved.components, name: entry.component})
        graft = plan(joined)
        if graft.errors:
            raise CorruptObject("; ".join(f"{d.place} {d.detail}" for d in graft.errors[:3]))
        graft.apply()
        rebuilt = capture().components[name]
        if fingerprint(rebuilt) != entry.state:
            raise CorruptObject("what the recorded actions lead to is not what was saved.")
        text, blobs = journal.payload(rebuilt)
        parts = [text, *blobs]
        sizes = ",".join(str(len(part)) for part in parts)
        return f"{sizes}\n{base64.b64encode(b''.join(parts)).decode()}"

    try:
        said = ask_copy(question, timeout=TIMEOUT)
    except Unanswered as error:
        raise CorruptObject(f"The environments cannot be rebuilt: {error}") from error
    return _read(said)


def _read(said: str) -> Component:
    sizes, _, encoded = said.partition("\n")
    data = memoryview(base64.b64decode(encoded))
    parts: list[bytes] = []
    at = 0
    for size in map(int, sizes.split(",")):
        parts.append(bytes(data[at : at + size]))
        at += size
    return journal.from_parts(parts[0], parts[1:])


def with_recordings(policy: Policy) -> Policy:
    """Return the rules under which recorded environments are captured by what was recorded."""
    return policy.merged(JOURNAL_POLICY)


def _is_in(place: str, component: Component) -> bool:
    return any(place == root or place.startswith(f"{root}/") for root in component.roots)


def _is_base(value: object) -> bool:
    core: Any = sys.modules.get("gymnasium")
    return core is not None and isinstance(value, core.Env) and vars(value).get("env") is None


def _has_own_way(env: object) -> bool:
    """Whether it is captured otherwise, is recorded already, or has a method of its own in the place of the class's."""
    return (
        ale.is_atari(env)
        or registry.registered(env) is not None
        or not {"step", "reset"}.isdisjoint(vars(env))
    )
