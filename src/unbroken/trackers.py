"""Trackers of experiments: checkpoints and restarts as marks in TensorBoard, W&B and MLflow, in one run of them for one run.

See docs/trackers.md. Nothing here imports a tracker that the script has not.
"""

from unbroken.adapters.trackers.going_on import log_mlflow, mlflow_run, wandb_run
from unbroken.engine.trackers.trackers import TrackerWarning

__all__ = ["TrackerWarning", "log_mlflow", "mlflow_run", "wandb_run"]
