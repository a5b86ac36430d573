"""Every object of a run against its digest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unbroken.errors import ConfigError
from unbroken.inspection.target import Target
from unbroken.repo.fault import ObjectFault


@dataclass(frozen=True, slots=True)
class CheckedCommit:
    """One checkpoint and what is wrong with it."""

    step: int
    sequence: int
    directory: str
    faults: tuple[ObjectFault, ...]


@dataclass(frozen=True, slots=True)
class Verification:
    """A run and its checkpoints, newest first. `passed_over`: the steps of those that the run, which is in
    training, deleted before they were read. `broken`: records and indexes of the run that cannot be read."""

    run: str
    intact: bool
    checkpoints: tuple[CheckedCommit, ...]
    passed_over: tuple[int, ...] = ()
    broken: tuple[ObjectFault, ...] = ()


def verified(target: Target, *, told: Callable[[int, int, int], None] | None = None) -> Verification:
    """Check the named checkpoint, or all of them. `told` is called before each with how many are done, of how many, and
    its step.

    Raises:
        ConfigError: there is none.
    """
    commits = [target.commit] if target.commit else target.repository.commits()
    broken = () if target.commit else tuple(target.repository.broken())
    if not commits and not broken:
        raise ConfigError(f"{target.where} holds no checkpoint.", hint="There is nothing to verify yet.")
    checked: list[CheckedCommit] = []
    passed_over: list[int] = []
    for number, c in enumerate(commits):
        if told is not None:
            told(number, len(commits), c.step)
        faults = tuple(target.repository.verify(c))
        if faults and target.repository.gone(c):
            passed_over.append(c.step)
        else:
            checked.append(CheckedCommit(c.step, c.sequence, c.directory, faults))
    intact = not broken and not any(c.faults for c in checked)
    return Verification(target.where, intact, tuple(checked), tuple(passed_over), broken)
