"""The checkpoints of the two runs: the shared start, and the ends that are compared."""

from __future__ import annotations

from pathlib import Path

from unbroken.errors import Unproved
from unbroken.format.records import Commit
from unbroken.repo import copying
from unbroken.repo.repository import Repository, jobs
from unbroken.report.comparison import compared
from unbroken.report.proof import FinalComparison


def copy_starts(source: Path, target: Path) -> dict[str, Commit]:
    """Give `target` the step 0 of every run in `source`; return the copied commits by run.

    A script without a seed begins elsewhere each time. With the same step 0 both runs begin at one place.

    Raises:
        Unproved: a run in `source` kept no step 0.
    """
    copied: dict[str, Commit] = {}
    for job in jobs(source):
        original = Repository.open(source, job)
        start = first_start(original)
        if start is None:
            raise Unproved(
                f"The run {job!r} kept no checkpoint of its step 0, so the two runs cannot begin alike.",
                hint="Does the script set keep_first=False through the environment?",
            )
        copy = Repository.open(target, job, create=True)
        with copy.writer() as writer:
            for made in copying.copy(original, [start], copy, writer):
                copied[job] = made.target
    return copied


def first_start(repository: Repository) -> Commit | None:
    """Return the checkpoint of step 0, before the first segment began."""
    starts = [c for c in repository.commits() if c.position == "start" and c.segment == 0]
    return min(starts, key=lambda commit: commit.sequence, default=None)


def finals(root: Path) -> dict[tuple[str, int], Commit]:
    """Return the last end of every segment of every run, by run and segment."""
    found: dict[tuple[str, int], Commit] = {}
    for job in jobs(root):
        for commit in Repository.open(root, job).commits():  # newest first
            if commit.position == "end":
                found.setdefault((job, commit.segment), commit)
    return found


def saved_between(root: Path) -> bool:
    """Return whether any run saved something between its start and its end."""
    return any(
        commit.position == "step" and commit.step > 0
        for job in jobs(root)
        for commit in Repository.open(root, job).commits()
    )


def compare_finals(undisturbed: Path, killed: Path) -> tuple[FinalComparison, ...]:
    """Compare the ends of all segments of all runs, leaf by leaf."""
    left, right = finals(undisturbed), finals(killed)
    found: list[FinalComparison] = []
    for job, segment in sorted({*left, *right}):
        before, after = left.get((job, segment)), right.get((job, segment))
        if before is None or after is None:
            step = max(commit.step for commit in (before, after) if commit is not None)
            missing = "undisturbed" if before is None else "killed"
            found.append(FinalComparison(job=job, segment=segment, step=step, missing=missing))
            continue
        a = Repository.open(undisturbed, job).load(before)
        b = Repository.open(killed, job).load(after)
        found.append(FinalComparison(job=job, segment=segment, step=before.step, components=compared(a, b)))
    return tuple(found)
