"""How the last process of a run ended, told from what it left behind.

| kind | meaning |
|---|---|
| `none` | there was no process before this one |
| `clean` | it closed the run |
| `soft` | the process is gone and its host has not restarted: killed, out of memory, an exception |
| `hard` | the host restarted, or it is another one |
| `data` | whatever ended it, its newest checkpoint is damaged |

The simple form: the epoch's owner record, the last line of its history and `pending.json` decide. Only "the
environment processes are still there" is no class of its own: a new process rebuilds everything.

Not promised: why. An exit by exception and a kill look alike from outside.
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
    same_host: bool = True
    same_boot: bool = True
    pending_step: int | None = None
    pending_since: str = ""
    newest_step: int | None = None
    last_step: int | None = None
    """The step at which it closed, if it did."""
    last_words: str = ""
    """What it said of its end: an exception, or nothing."""


@dataclass(frozen=True, slots=True)
class EndOfProcess:
    """How the last process ended, in one word and one sentence."""

    kind: FaultKind
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.detail}" if self.detail else self.kind.value


def classify(traces: Traces) -> EndOfProcess:
    """Return how the last process ended."""
    if not traces.known:
        return EndOfProcess(FaultKind.NONE)
    who = traces.owner or "the last process"
    if traces.closed:
        return EndOfProcess(
            FaultKind.CLEAN,
            f"{who} closed the run" + (f" after {traces.last_words}" if traces.last_words else ""),
        )
    if not traces.same_host:
        return EndOfProcess(FaultKind.HARD, _with_pending(f"{who} ended without closing the run", traces))
    if not traces.same_boot:
        return EndOfProcess(FaultKind.HARD, _with_pending(f"the host restarted under {who}", traces))
    return EndOfProcess(FaultKind.SOFT, _with_pending(f"{who} is gone without closing the run", traces))


def with_damage(fault: EndOfProcess, reasons: tuple[str, ...]) -> EndOfProcess:
    """Return the fault once checkpoints were found damaged."""
    if len(reasons) == 0:
        return fault
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return replace(fault, kind=FaultKind.DATA, detail=f"{reasons[0]}{more}; before that, {fault}")


def _with_pending(sentence: str, traces: Traces) -> str:
    step = traces.pending_step
    if step is None or (traces.newest_step is not None and traces.newest_step >= step):
        return sentence
    return f"{sentence}, in the middle of saving step {step:,}"
