"""What a proof found: the kills, what each restart came back to, and whether the two ends are equal.

Invariant: what no checkpoint holds cannot be compared, so where a part is not captured the answer is
never "equal".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from unbroken.report.comparison import ComponentComparison
from unbroken.types import Fidelity

Verdict: TypeAlias = Literal[
    "equal", "equal as far as captured", "not proved", "snapshot lost", "left behind", "different"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One SIGKILL. `step` had been reached and `committed` saved when it came.

    `handed` is the step of the last snapshot that another process was to commit, whatever becomes of the
    trainer (`writer="process"`); 0 if there was none.
    """

    step: int
    committed: int
    seconds: float
    """Time since this start of the script."""
    handed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """How the start after a kill came back, as the run's own history tells it."""

    job: str
    tier: str
    fault: str
    step: int
    restored: bool
    """False where only the start, step 0, was restored: that proves nothing."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of the killed run: how it resumed and how it was killed (None: it ran to the end)."""

    resumes: tuple[Resume, ...]
    kill: Kill | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalComparison:
    """The end of one segment of one job in both runs. `missing` names the run that never reached it."""

    job: str
    segment: int
    step: int
    components: tuple[ComponentComparison, ...] = ()
    missing: str = ""

    @property
    def equal(self) -> bool:
        """Whether nothing differs in what the two checkpoints hold."""
        return not self.missing and all(row.equal for row in self.components)

    @property
    def worst(self) -> Fidelity:
        """The least that a component promises."""
        order = list(Fidelity)
        return max((row.promise.fidelity for row in self.components), key=order.index, default=order[0])

    @property
    def whole(self) -> bool:
        """Whether the checkpoints hold every part, at least approximately."""
        return self.worst is not Fidelity.NOT_CAPTURED


@dataclass(frozen=True, slots=True, kw_only=True)
class ProveResult:
    """A proof that was carried out. One that could not be is an `Unproved` error instead."""

    command: tuple[str, ...]
    target: str
    seed: int
    steps: int
    undisturbed_seconds: float
    killed_seconds: float
    starts: tuple[Start, ...]
    finals: tuple[FinalComparison, ...]
    left_out: tuple[str, ...]
    """Leaves that were not compared, each with the reason: the closed list of wall-clock values."""
    directory: Path | None
    """Where both runs and the script's output lie, if they were kept."""
    left_behind: tuple[str, ...] = ()
    """What is left at the end and should not be: files and records in the runs, processes, shared memory."""

    @property
    def equal(self) -> bool:
        """Whether the killed run ended as the undisturbed one, and every part of it was compared."""
        return self.verdict in ("equal", "equal as far as captured")

    @property
    def verdict(self) -> Verdict:
        """The answer: what differs outweighs what could not be compared."""
        if not self.finals or not all(final.equal for final in self.finals):
            return "different"
        if self.outlived < self.handed_over:
            return "snapshot lost"
        if self.left_behind:
            return "left behind"
        if not all(final.whole for final in self.finals):
            return "not proved"
        exact = all(final.worst is Fidelity.EXACT for final in self.finals)
        return "equal" if exact else "equal as far as captured"

    @property
    def resumed(self) -> int:
        """How many restarts went on from a checkpoint after step 0: only these test a resume."""
        return sum(any(resume.restored for resume in start.resumes) for start in self.starts)

    @property
    def handed_over(self) -> int:
        """How many kills of the trainer alone came after it had handed over a snapshot. Of a tree that is
        killed whole nothing of the kind is promised."""
        return len(self._promised())

    @property
    def outlived(self) -> int:
        """After how many of these the next start went on from that snapshot, or a later one."""
        return sum(
            kill.handed <= max((resume.step for resume in following.resumes), default=-1)
            for kill, following in self._promised()
        )

    def _promised(self) -> list[tuple[Kill, Start]]:
        pairs = zip(self.starts, self.starts[1:], strict=False)
        return [
            (start.kill, following)
            for start, following in pairs
            if self.target == "trainer" and start.kill is not None and start.kill.handed
        ]

    @property
    def kills(self) -> tuple[Kill, ...]:
        return tuple(start.kill for start in self.starts if start.kill is not None)

    @property
    def lost_seconds(self) -> float:
        """Wall time that the kills cost."""
        return self.killed_seconds - self.undisturbed_seconds


def restored_steps(starts: Sequence[Start]) -> list[int]:
    """Return the step of every resume that restored something after the start."""
    return [resume.step for start in starts for resume in start.resumes if resume.restored]
