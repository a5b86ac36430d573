"""How the last process of a run ended, told from what it left behind.

| kind | meaning | the way back |
|---|---|---|
| `none` | there was no process before this one: a new run, or a copy of one | step 0 is committed, and training begins; in a copy, its newest |
| `clean` | it closed the run, and said why | its newest checkpoint; what came after that is told |
| `soft` | it is gone, its machine is not: killed, no memory, an exception; or it lives, and was taken over on purpose | the newest; its workers are ended |
| `hard` | the machine restarted, or it is another one | the newest that is whole; nothing else is left |
| `data` | whatever ended it, its newest checkpoint is damaged | the newest that is whole; the others are named |

The lease, its boot id, the last line of the history and `pending.json` decide (`traces`). Every class restores into
a new process: "the environment processes are still there" is no class of its own, since those have gone on.

Not promised: why a process was killed. A kill, a lack of memory and an exception that nobody saw look alike from outside.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class FaultKind(str, Enum):
    """The classes of faults, as people speak of them."""

    NONE = "none"
    CLEAN = "clean"
    SOFT = "soft"
    HARD = "hard"
    DATA = "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """What is known of the last process and of this one."""

    known: bool
    """Whether any process worked on the run before."""
    closed: bool = False
    """Whether its history says that it ended."""
    owner: str = ""
    is_alive: bool = False
    """Whether the owner is known to live: then a start that goes on has taken the run from it."""
    same_host: bool = True
    same_boot: bool = True
    """Whether the boot of both is the same, or that of one is unknown."""
    same_kernel: bool = False
    """Whether both are known to run on one kernel: then another name of the host is another container."""
    pending_step: int | None = None
    pending_segment: int = 0
    newest_step: int | None = None
    newest_segment: int = 0
    last_step: int | None = None
    """The step at which it closed, if it did."""
    last_words: str = ""
    """What it said of its end: an exception, a signal, or nothing."""

    def reached(self, segment: int) -> int | None:
        """Return the latest step of a segment that is known to have been reached; None if none is."""
        steps = (
            (self.newest_segment, self.newest_step),
            (self.pending_segment, self.pending_step),
            (self.newest_segment, self.last_step if self.closed else None),
        )
        return max((step for where, step in steps if where == segment and step is not None), default=None)

    def lost(self, segment: int, step: int) -> int | None:
        """Return how many steps a start at `step` does again, as far as the last process has left word of them.

        None where it was killed and nothing says how far it had come: at most what lies between two saves.
        """
        reached = self.reached(segment)
        if reached is None:
            return None
        if reached > step:
            return reached - step
        return 0 if self.closed else None

    def lost_at_least(self, segment: int, step: int) -> bool:
        """Whether what `lost` says is a bound from below: what is known to have been reached is a save, begun or
        committed, of a process that trained on after it and was killed."""
        return bool(self.lost(segment, step)) and not (self.closed and segment == self.newest_segment)


@dataclass(frozen=True, slots=True)
class EndOfProcess:
    """How the last process ended, in one word and one sentence."""

    kind: FaultKind
    detail: str = ""
    is_alive: bool = False
    """Whether that process lives, and the run was taken from it."""

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.detail}" if self.detail else self.kind.value


NOBODY = "no process is on record"
"""Of a run with checkpoints: it is a copy, or what its process has left behind was taken away."""


def classify(traces: Traces) -> EndOfProcess:
    """Return how the last process ended."""
    if not traces.known:
        return EndOfProcess(FaultKind.NONE)
    if not traces.owner and not traces.closed and traces.pending_step is None:
        return EndOfProcess(FaultKind.NONE, NOBODY)
    who = traces.owner or "the last process"
    if traces.closed:
        return EndOfProcess(
            FaultKind.CLEAN,
            f"{who} closed the run" + (f": {traces.last_words}" if traces.last_words else ""),
        )
    if traces.is_alive:
        taken = f"the run was taken over from {who}, a process that lives"
        return EndOfProcess(FaultKind.SOFT, _with_pending(taken, traces), is_alive=True)
    gone = f"{who} is gone without closing the run"
    if not traces.same_host and traces.same_kernel:
        return EndOfProcess(
            FaultKind.SOFT, _with_pending(f"{gone}, as its container is, and the machine goes on", traces)
        )
    if not traces.same_host:
        return EndOfProcess(FaultKind.HARD, _with_pending(f"{who} ended without closing the run", traces))
    if not traces.same_boot:
        return EndOfProcess(FaultKind.HARD, _with_pending(f"the host restarted under {who}", traces))
    return EndOfProcess(FaultKind.SOFT, _with_pending(gone, traces))


def with_damage(fault: EndOfProcess, reasons: tuple[str, ...]) -> EndOfProcess:
    """Return the fault once checkpoints were found damaged."""
    if len(reasons) == 0:
        return fault
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    ended = NOBODY if fault.kind is FaultKind.NONE else f"{fault.detail} ({fault.kind.value})"
    return replace(fault, kind=FaultKind.DATA, detail=f"{ended}; damaged: {reasons[0].rstrip('.')}{more}")


def _with_pending(sentence: str, traces: Traces) -> str:
    step = traces.pending_step
    if step is None:
        return sentence
    saved = traces.newest_step is not None and traces.newest_segment == traces.pending_segment
    if saved and traces.newest_step is not None and traces.newest_step >= step:
        return sentence
    return f"{sentence}, in the middle of saving step {step:,}"
