"""MLflow, through its client and the id of the run that the training has begun.

Invariants: whatever the training's active run is by then, marks go to the run that was active when it was found; no
generator of the training is drawn from.

Not promised: that MLflow takes back what was logged. It keeps every point; see `unbroken.trackers.log_mlflow`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from unbroken.engine.trackers.place import CHECKPOINT, LOST, RESTART, SECONDS

MOST = 5000
"""Characters of a tag that every MLflow takes."""
JITTER = "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER"
"""Variable of MLflow: seconds at random between two attempts, at most."""


class MlflowRun:
    """One run of MLflow by its id, on the server, or in the files, that the library is set to."""

    kind = "mlflow"

    def __init__(self, run_id: str, client: Any = None) -> None:
        self.run_id = run_id
        # A client whose server does not answer draws how long it waits from Python's global generator, which is a
        # training's. Unless the user has said how much, it draws nothing.
        os.environ.setdefault(JITTER, "0")
        self._client = client or import_module("mlflow").MlflowClient()

    @property
    def title(self) -> str:
        """What a person calls it."""
        return f"the MLflow run {self.run_id}"

    @property
    def identity(self) -> Mapping[str, str]:
        """What `mlflow.start_run` needs to go on in it."""
        return {"run_id": self.run_id}

    def begin(self, *, step: int, segment: int) -> None:
        """Do nothing: nothing can be taken back."""

    def began(self, where: str) -> None:
        """Say in a tag where the checkpoints are."""
        self._client.set_tag(self.run_id, "unbroken.run", where[:MOST])

    def restarted(self, line: str, *, step: int, lost: int | None) -> None:
        """Mark it at the step, and what it says as a tag of its own."""
        self._client.log_metric(self.run_id, RESTART, float(step), step=step)
        if lost is not None:
            self._client.log_metric(self.run_id, LOST, float(lost), step=step)
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        self._client.set_tag(self.run_id, f"unbroken.restart.{moment}", line[:MOST])

    def saved(self, *, step: int, seconds: float) -> None:
        """Mark it at the step."""
        self._client.log_metric(self.run_id, CHECKPOINT, float(step), step=step)
        self._client.log_metric(self.run_id, SECONDS, seconds, step=step)

    def flush(self) -> None:
        """Do nothing: each mark is a request of its own."""


def mlflow_in_use(modules: Mapping[str, object]) -> MlflowRun | None:
    """Return the run that the calling thread logs to, if the library is loaded and one has begun."""
    active: Any = getattr(modules.get("mlflow"), "active_run", None)
    run = None if active is None else active()
    return None if run is None else MlflowRun(run.info.run_id)


def is_mlflow(value: object) -> bool:
    """Whether this is a run of MLflow."""
    return hasattr(getattr(value, "info", None), "run_id")
