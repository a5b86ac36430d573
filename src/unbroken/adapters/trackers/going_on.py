"""How a script goes on in the run of a tracker that it logged to before it was killed.

W&B and MLflow are begun by the script, before it trains. It passes on what these functions return: nothing at the first
start, later the run that the checkpoints name.

Invariant: nothing is written.

Not promised: that a service lets itself be gone on with. It may have lost the run, or not be there.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Literal, TypedDict

from unbroken.engine.options import settings_of
from unbroken.engine.settings import Settings
from unbroken.engine.trackers.recorded import recorded
from unbroken.errors import ConfigError, installing


class InWandb(TypedDict, total=False):
    """Arguments of `wandb.init`."""

    id: str
    resume: Literal["allow"]


class InMlflow(TypedDict, total=False):
    """Arguments of `mlflow.start_run`."""

    run_id: str


def wandb_run(root: str | os.PathLike[str] | Settings | None = None, *, job: str = "") -> InWandb:
    """Return the arguments with which `wandb.init` goes on in the run of W&B that this run was logged to.

    `root` and `job` are those of the training, or its `Settings`; without a root, `UNBROKEN_ROOT` or the configuration
    file says it. Empty where there is no checkpoint, none that names such a run, or the run is to begin anew
    (`resume="never"`): then W&B begins one.

    >>> wandb.init(project="ppo", **wandb_run("runs/ppo"))  # doctest: +SKIP

    Raises:
        ConfigError: a setting cannot be used. StoreError: the checkpoints cannot be read.
    """
    known = _recorded("wandb_run", root, job).get("wandb", {})
    if "id" not in known:
        return {}
    # Not "must": a run that was deleted there is no reason not to train.
    return {"id": known["id"], "resume": "allow"}


def mlflow_run(root: str | os.PathLike[str] | Settings | None = None, *, job: str = "") -> InMlflow:
    """Return the arguments with which `mlflow.start_run` goes on in the run of MLflow that this run was logged to.

    Takes what `wandb_run` takes, and is empty where that is.

    >>> mlflow.start_run(**mlflow_run("runs/ppo"))  # doctest: +SKIP

    Raises:
        ConfigError: a setting cannot be used. StoreError: the checkpoints cannot be read.
    """
    known = _recorded("mlflow_run", root, job).get("mlflow", {})
    return {"run_id": known["run_id"]} if "run_id" in known else {}


def _recorded(
    face: str, root: str | os.PathLike[str] | Settings | None, job: str
) -> Mapping[str, Mapping[str, str]]:
    settings = root if isinstance(root, Settings) else settings_of(face, root, {}, job=job)
    return recorded(settings.overridden(os.environ))


MOST_RUNS = 64
"""Of so many runs it is remembered what stands there; of those before it is asked again."""


class Standing:
    """The newest step of each metric of one run of MLflow: asked for once, known from then on."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held from the look at what stands there until the new values do: of two threads one logs a step."""
        self._steps: dict[str, int] | None = None

    def steps(self, run_id: str, client: Callable[[], Any]) -> dict[str, int]:
        """Return them. The run itself has the newest point of every metric, so one short request does."""
        if self._steps is None:
            told = client().get_run(run_id).data.to_proto()
            self._steps = {str(metric.key): int(metric.step) for metric in told.metrics}
        return self._steps


class Logged:
    """What stands in the runs that this process logs to, by tracking server and run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: OrderedDict[tuple[str, str], Standing] = OrderedDict()

    def of(self, where: str, run_id: str) -> Standing:
        """Return what stands in one run."""
        with self._lock:
            found = self._runs.setdefault((where, run_id), Standing())
            self._runs.move_to_end((where, run_id))
            while len(self._runs) > MOST_RUNS:
                self._runs.popitem(last=False)
            return found


_logged = Logged()


def log_mlflow(metrics: Mapping[str, float], *, step: int) -> None:
    """Log metrics to the active run of MLflow as `mlflow.log_metrics` does, but each step of a metric once.

    MLflow keeps every point that it is given, so steps that are done again after a kill would stand there twice. What
    is not beyond the newest step of a metric is left out here; in a run that resumes exactly it would be the same.
    Asks the server once for each run. May be called in any thread.

    Raises:
        ConfigError: mlflow is not installed, or no run is active. Whatever mlflow raises.
    """
    try:
        mlflow: Any = import_module("mlflow")
    except ImportError:
        raise ConfigError(
            "log_mlflow needs the library mlflow, which is not installed.", hint=installing("mlflow")
        ) from None
    active = mlflow.active_run()
    if active is None:
        raise ConfigError("No run of MLflow is active.", hint="Call mlflow.start_run() before.")
    run_id, where = str(active.info.run_id), str(mlflow.get_tracking_uri())
    standing = _logged.of(where, run_id)
    with standing.lock:
        steps = standing.steps(run_id, mlflow.MlflowClient)
        news = {name: value for name, value in metrics.items() if step > steps.get(name, -1)}
        if news:
            mlflow.log_metrics(news, step=step)
            steps.update(dict.fromkeys(news, step))
