"""How a script goes on in the run of a tracker that it logged to before it was killed.

W&B and MLflow are begun by the script, before it trains. It passes on what these functions return: nothing at the first
start, later the run that the checkpoints name.

Invariant: nothing is written.

Not promised: that a service lets itself be gone on with. It may have lost the run, or not be there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Literal, TypedDict

from unbroken.engine.options import settings_of
from unbroken.engine.settings import Settings
from unbroken.engine.trackers.recorded import recorded
from unbroken.errors import ConfigError


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


_logged: dict[tuple[str, str, str], int] = {}
"""By tracking URI, run and metric, the newest step that is known to stand there."""


def log_mlflow(metrics: Mapping[str, float], *, step: int) -> None:
    """Log metrics to the active run of MLflow as `mlflow.log_metrics` does, but each step of a metric once.

    MLflow keeps every point that it is given, so steps that are done again after a kill would stand there twice. What
    is not beyond the newest step of a metric is left out here; in a run that resumes exactly it would be the same.
    Asks the server once for each metric.

    Raises:
        ConfigError: mlflow is not installed, or no run is active. Whatever mlflow raises.
    """
    try:
        mlflow: Any = import_module("mlflow")
    except ImportError:
        raise ConfigError(
            "log_mlflow needs the library mlflow, which is not installed.", hint="Run: pip install mlflow"
        ) from None
    active = mlflow.active_run()
    if active is None:
        raise ConfigError("No run of MLflow is active.", hint="Call mlflow.start_run() before.")
    run_id, where = str(active.info.run_id), str(mlflow.get_tracking_uri())
    client: Any = None
    news: dict[str, float] = {}
    for name, value in metrics.items():
        key = (where, run_id, name)
        if key not in _logged:
            client = client or mlflow.MlflowClient()
            _logged[key] = max((m.step for m in client.get_metric_history(run_id, name)), default=-1)
        if step > _logged[key]:
            news[name] = value
    if news:
        mlflow.log_metrics(news, step=step)
        _logged.update({(where, run_id, name): step for name in news})
