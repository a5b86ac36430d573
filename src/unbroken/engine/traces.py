"""What the last process of a run has left behind, read for `faults` to judge. Nothing is written, locked or waited for.

The lease names who works on the run and goes when that process ends in order; the last line of the history says that
it did, and why; `pending.json` says that a save was begun. Lines of starts that were refused say nothing of a process
that has trained, and are passed over.

Not promised: the step that a killed process had come to. What is on record are its saves, begun and committed.
"""

from __future__ import annotations

from unbroken.engine.faults import Traces
from unbroken.errors import CorruptObject
from unbroken.format.records import HistoryRecord, Lease
from unbroken.repo.lock import read_lease
from unbroken.repo.process import Process, named_in
from unbroken.repo.repository import Repository

REFUSED = "refused"
"""The event of a start that has stopped before it trained: it says nothing of the process before."""


def read_traces(repository: Repository, process: Process) -> Traces:
    """Return what the last process left behind. To be read before this one takes the run over."""
    lease = read_lease(repository.store)
    history = [record for record in repository.history() if record.event != REFUSED]
    last = history[-1] if history else None
    commits = repository.commits()
    try:
        pending = repository.pending()
    except CorruptObject:
        pending = None  # torn by a fault of the disk; the commits tell what can be used
    ended = last if last is not None and last.event == "end" and _is_of(last, lease) else None
    owner = lease or last
    if pending is not None and owner is not None and named_in(pending) != named_in(owner):
        pending = None  # of a process before the last one, which has saved nothing since
    newest = commits[0] if commits else None
    return Traces(
        known=owner is not None or newest is not None,
        closed=ended is not None,
        owner="" if owner is None else str(named_in(owner)),
        is_alive=lease is not None
        and named_in(lease) != process
        and bool(named_in(lease).is_alive(here=process)),
        same_host=owner is None or owner.host == process.host,
        same_boot=owner is None or not owner.boot_id or owner.boot_id == process.boot_id,
        same_kernel=owner is not None and bool(owner.boot_id) and owner.boot_id == process.boot_id,
        pending_step=None if pending is None else pending.step,
        pending_segment=0 if pending is None else pending.segment,
        newest_step=None if newest is None else newest.step,
        newest_segment=0 if newest is None else newest.segment,
        last_step=None if ended is None else ended.step,
        last_words="" if ended is None else "; ".join(ended.reasons),
    )


def _is_of(ended: HistoryRecord, lease: Lease | None) -> bool:
    """Whether nobody has taken the run since `ended` was written. Who says that it has ended and is killed before its
    lease is gone has ended all the same."""
    return lease is None or named_in(lease) == named_in(ended)
