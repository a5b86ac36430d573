"""MLflow, through its client and the id of the run that the training has begun.

Invariants: whatever the training's active run and tracking server are by then, marks go to those of the moment at which
the place was begun; a mark that a server keeps waiting, or refuses, draws from no generator of the training.

Not promised: that MLflow takes back what was logged. It keeps every point; see `unbroken.trackers.log_mlflow`. And where
the training's process opens the database itself, without a server, MLflow draws from Python's global generator after a
deadlock with another process that writes there.
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
    """One run of MLflow by its id: `where` on the server, or in the files; else where the library is set to."""

    kind = "mlflow"

    def __init__(self, run_id: str, where: str | None = None) -> None:
        self.run_id = run_id
        self._where = where
        self._made: Any = None

    @property
    def title(self) -> str:
        """What a person calls it."""
        return f"the MLflow run {self.run_id}"

    @property
    def identity(self) -> Mapping[str, str]:
        """What `mlflow.start_run` needs to go on in it."""
        return {"run_id": self.run_id}

    def begin(self, *, step: int, segment: int) -> None:
        """Note where the library logs to by now. Nothing can be taken back."""
        # A client whose server does not answer draws how long it waits from Python's global generator, which is a
        # training's. Unless the user has said how much, it draws nothing.
        os.environ.setdefault(JITTER, "0")
        if self._where is None:
            self._where = import_module("mlflow").get_tracking_uri()

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

    @property
    def _client(self) -> Any:
        """Made by the thread that leaves marks, since it takes a while."""
        if self._made is None:
            self._made = import_module("mlflow").MlflowClient(self._where)
        return self._made


class FindsMlflow:
    """Finds the run that the calling thread logs to."""

    kind = "mlflow"

    def find(self, modules: Mapping[str, object]) -> MlflowRun | None:
        """Return it, if the library is loaded and a run has begun."""
        active: Any = getattr(modules.get("mlflow"), "active_run", None)
        run = None if active is None else active()
        return None if run is None else MlflowRun(run.info.run_id)


def is_mlflow(value: object) -> bool:
    """Whether this is a run of MLflow."""
    return hasattr(getattr(value, "info", None), "run_id")
