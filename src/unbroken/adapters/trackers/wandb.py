"""Weights & Biases, through the run that the training has begun.

Invariant: a mark joins the row that the training is logging, and begins none: W&B's own count of steps is the training's.
Of several marks that come between two rows the newest of each kind stays.

Not promised: that W&B takes back what was logged. A row whose `step=` is not beyond its newest one is dropped by W&B itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unbroken.engine.trackers.place import CHECKPOINT, LOST, RESTART, SECONDS


class WandbRun:
    """One run of W&B, as `wandb.init` has returned it."""

    kind = "wandb"

    def __init__(self, run: Any) -> None:
        self._run = run

    @property
    def title(self) -> str:
        """What a person calls it."""
        return f"the W&B run {self._run.id}"

    @property
    def identity(self) -> Mapping[str, str]:
        """What `wandb.init` needs to go on in it."""
        found = {"id": self._run.id, "project": self._run.project, "entity": self._run.entity}
        return {name: str(value) for name, value in found.items() if value}

    def begin(self, *, step: int, segment: int) -> None:
        """Do nothing: nothing can be taken back."""

    def began(self, where: str) -> None:
        """Say in its configuration where the checkpoints are."""
        self._run.config.update({"unbroken": {"run": where}}, allow_val_change=True)

    def restarted(self, line: str, *, step: int, lost: int | None) -> None:
        """Mark it in the next row, and what it says in the summary."""
        self._run.log({RESTART: step, **({} if lost is None else {LOST: lost})}, commit=False)
        self._run.summary["unbroken/last_restart"] = line

    def saved(self, *, step: int, seconds: float) -> None:
        """Mark it in the next row."""
        self._run.log({CHECKPOINT: step, SECONDS: seconds}, commit=False)

    def flush(self) -> None:
        """Do nothing: W&B's own process sends what it has."""


class FindsWandb:
    """Finds the run that this process logs to."""

    kind = "wandb"

    def find(self, modules: Mapping[str, object]) -> WandbRun | None:
        """Return it, if the library is loaded and a run has begun."""
        run: Any = getattr(modules.get("wandb"), "run", None)
        return None if run is None or getattr(run, "disabled", False) else WandbRun(run)


def is_wandb(value: object) -> bool:
    """Whether this is a run of W&B."""
    return type(value).__module__.partition(".")[0] == "wandb" and hasattr(value, "summary")
