"""What a start of a run says: where it goes on from, and what that is worth.

Not promised: more than the components promise themselves. An approximate part is named, never hidden
behind the exact ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from shlex import quote

from unbroken.engine.faults import EndOfProcess, FaultKind
from unbroken.engine.mirroring import Lent
from unbroken.engine.recovery import RecoveryPlan, Tier
from unbroken.format.records import Commit, Position
from unbroken.state.snapshot import Promise
from unbroken.types import Fidelity, worse

_FROM = {
    Tier.NEWEST: "from the newest checkpoint",
    Tier.OLDER: "from an older checkpoint",
    Tier.REBUILT: "rebuilt from what was recorded",
}


class Chosen(str, Enum):
    """Why a checkpoint was taken, where it is not for being the newest that can be used."""

    STEP = "step"
    BEST = "best"
    MIRROR = "mirror"


_CHOSEN = {
    Chosen.STEP: "from the step that was asked for",
    Chosen.BEST: "from the best checkpoint",
    Chosen.MIRROR: "from the mirror",
}
_ENDS = {
    FaultKind.SOFT: "the last process was killed or crashed",
    FaultKind.HARD: "the host of the last process restarted, or is another one",
    FaultKind.DATA: "a newer checkpoint is damaged",
}
"""How people speak of the end of the last process; of one that ended in order nothing is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeReport:
    """How one start went. `line` is the one sentence for people, `text` all of it.

    `changes` are what the user changed and what became of each; `reasons` say why checkpoints were
    passed over; `warnings` what may change low bits. `seconds` is how long the start took. `steps_lost` is
    None where nobody knows. `also` are parts of the line that only the adapter knows; `goes_on_to` is the step
    to which a segment goes on that had finished, because the user has asked for more.
    """

    tier: Tier
    fault: EndOfProcess
    step: int
    plan: RecoveryPlan
    commit: Commit | None = None
    position: Position = "start"
    segment: int = 0
    changes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    promises: Mapping[str, Promise] = field(default_factory=dict[str, Promise])
    facts: Mapping[str, object] = field(default_factory=dict[str, object])
    steps_lost: int | None = None
    lost_at_least: bool = False
    """Whether there may have been more than `steps_lost`: the last process was killed, and left word of its saves only."""
    seconds: float = 0.0
    where: str = ""
    also: tuple[str, ...] = ()
    goes_on_to: int | None = None
    origin: str = ""
    """The checkpoint of another run that this one was cloned from."""
    inexact: tuple[str, ...] = ()
    """What has set the run apart from an undisturbed one, at this start or at one before."""
    tried: bool = False
    """Whether a warm-up evaluation has looked at it, and let it pass."""
    chosen: Chosen | None = None
    """Why it is this checkpoint, if it is another than `tier` says."""
    lent: Lent | None = None
    """What came of asking the mirror, if it was asked."""
    left: bool = False
    """Whether it begins anew beside checkpoints that it could not go on from, and that are kept."""

    def towards(self, total: int) -> ResumeReport:
        """Return this report for a segment that is to have `total` steps: one that had finished before goes on."""
        return replace(self, goes_on_to=total) if self.finished and total > self.step else self

    @property
    def restored(self) -> bool:
        """Whether anything came back."""
        return self.tier is not Tier.FRESH

    @property
    def finished(self) -> bool:
        """Whether this segment had come to its end."""
        return self.position == "end"

    @property
    def line(self) -> str:
        """One line: step, learning rate, buffer, episodes, tier, and which parts are exact."""
        if not self.restored:
            parts = [f"starts at step {self.step:,}"]
            if self.reasons or (self.lent is not None and self.lent.problems):
                parts[0] += ", because nothing that was saved can be used"
            if self.where:
                parts.append(f"checkpoints in {self.where}")
        else:
            parts = [self._restart]
            if self.fault.is_alive:
                parts.append("taken over from a process that lives")
            known = not self._lost_here  # of a process of which nothing is left, nobody knows how it ended
            if (
                known
                and self.fault.kind in _ENDS
                and not (self.fault.is_alive and self.fault.kind is FaultKind.SOFT)
            ):
                parts.append(_ENDS[self.fault.kind])
        if self.lent is not None and self.lent.says:
            parts.append(self.lent.says)
        parts += self.also
        return "unbroken: " + " · ".join([*parts, *_facts(self.facts), _exactness(self.promises)])

    @property
    def _lost_here(self) -> bool:
        """Whether the mirror has given back a run of which nothing was left."""
        return self.lent is not None and self.lent.empty and bool(self.lent.steps)

    @property
    def _restart(self) -> str:
        if self.goes_on_to is not None:
            return f"had finished at step {self.step:,}, goes on to {self.goes_on_to:,} {self._from}"
        if self.origin:
            return f"goes on at step {self.step:,} as a clone of {self.origin}"
        verb = "had finished at" if self.finished else "goes on at"
        return f"{verb} step {self.step:,} {self._from}"

    @property
    def _from(self) -> str:
        return _FROM[self.tier] if self.chosen is None else _CHOSEN[self.chosen]

    @property
    def text(self) -> str:
        """`line`, and below it everything that a person should know."""
        lines = [self.line]
        lines += [f"  {self.lent}"] if self.lent is not None and str(self.lent) not in self.line else []
        lines += [f"  passed over {reason}" for reason in self.reasons]
        if self.left:
            lines.append(
                "  what can be read of them is kept until you delete it:"
                f" unbroken prune {quote(self.where)} --keep-last 1"
            )
        lines += ["  the warm-up evaluation lets it pass"] if self.tried else []
        lines += [f"  changed: {change}" for change in self.changes]
        lines += [f"  warning: {warning}" for warning in self.warnings]
        if _shared(self.promises) is None:
            lines += [
                f"  {', '.join(names)} {'is' if len(names) == 1 else 'are'} {promise.fidelity.value}: {promise.reason}"
                for promise, names in _inexact(self.promises).items()
            ]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text


def _facts(facts: Mapping[str, object]) -> list[str]:
    found: list[str] = []
    rate = facts.get("learning_rate")
    if isinstance(rate, (int, float)):
        found.append(f"learning rate {rate:g}")
    for name, word in (("buffer_rows", "buffer rows"), ("episodes", "episodes")):
        value = facts.get(name)
        # No episode yet, or nobody counts them: a loop that records none has nothing to say of them.
        if isinstance(value, int) and (value or name != "episodes"):
            found.append(f"{value:,} {word}")
    return found


def _exactness(promises: Mapping[str, Promise]) -> str:
    if not promises:
        return "nothing captured yet"
    if all(promise.fidelity is Fidelity.EXACT for promise in promises.values()):
        return f"exact: all {len(promises)} parts"
    shared = _shared(promises)
    if shared is not None:
        return f"{shared.fidelity.value}: all parts ({shared.reason})"
    of = {
        fidelity: sorted(n for n, promise in promises.items() if promise.fidelity is fidelity)
        for fidelity in Fidelity
    }
    told = [f"{fidelity.value}: {', '.join(names)}" for fidelity, names in of.items() if names]
    return "; ".join(told if of[Fidelity.EXACT] else ["exact: nothing", *told])


def _inexact(promises: Mapping[str, Promise]) -> dict[Promise, list[str]]:
    """Return the parts that are not exact, those of one kind and reason together."""
    found: dict[Promise, list[str]] = {}
    for name, promise in promises.items():
        if promise.fidelity is not Fidelity.EXACT:
            found.setdefault(promise, []).append(name)
    return found


def _shared(promises: Mapping[str, Promise]) -> Promise | None:
    """Return what all parts promise, if it is less than exact and the same for several."""
    every = set(promises.values())
    found = every.pop() if len(every) == 1 and len(promises) > 1 else None
    return None if found is None or found.fidelity is Fidelity.EXACT else found


def lowered(promises: Mapping[str, Promise], reasons: Sequence[str]) -> dict[str, Promise]:
    """Return the promises of a run that something has set apart from an undisturbed one; the first reason is told."""
    if not reasons:
        return dict(promises)
    low = Promise(Fidelity.APPROXIMATE, reasons[0])
    return {name: worse(promise, low) for name, promise in promises.items()}
