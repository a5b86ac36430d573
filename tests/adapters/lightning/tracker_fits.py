"""Fits that log each batch by one of Lightning's loggers: imports once, then forks for every order (`exactness.forked`), one JSON
object a line.

`{"at": …, "kind": …, "pause": N, "cold": […]}`. All lies below the folder `at`. At the batch N it leaves its number in `paused` there,
and waits to be killed; all that was saved is durable and marked by then. At its end it leaves its state in `ended`. What it logs is
drawn from the global generators, so that it shows whether somebody else draws from them.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import ProgressBar
from torch.utils.data import DataLoader, TensorDataset

from exactness.forked import serve, warm_up
from tests.adapters.lightning.runner import leave_cold, wait_for_saves
from unbroken.lightning import CheckpointCallback
from unbroken.trackers import mlflow_run, wandb_run

BATCHES, EPOCHS, EVERY = 6, 3, 5


class Drawing(lightning.LightningModule):
    """Logs what it draws at each batch, and after each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
        self.drawn: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.drawn.append(random.random() + np.random.random())  # noqa: NPY002 - those that anybody could draw from
        self.log("drawn", self.drawn[-1])
        return self.net(batch[0]).square().mean() * self.drawn[-1]

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("validated", random.random())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.arange(12.0).reshape(12, 1)), batch_size=2, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.arange(2.0).reshape(2, 1)))


class Pauses(ProgressBar):
    """Waits to be killed. A progress bar is no part of a training's state."""

    def __init__(self, ours: CheckpointCallback, left: int, told: Path) -> None:
        super().__init__()
        self.ours, self.left, self.told = ours, left, told

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        session: Any = self.ours._session
        assert session._running.wait_for_marks(60)
        self.left -= 1
        if self.left == -1:
            tell(self.told, str(os.getpid()))
            signal.pause()


def tell(place: Path, what: str) -> None:
    """Leave a word that appears whole."""
    place.with_suffix(".new").write_text(what)
    place.with_suffix(".new").replace(place)


def loggers(kind: str, folder: str, root: str) -> list[Any]:
    """Return the loggers of a kind, as a script writes them."""
    library: Any = import_module("lightning.pytorch.loggers")
    if kind == "files":
        return [library.TensorBoardLogger(folder), library.CSVLogger(folder, name="csv")]
    if kind == "named":
        return [library.CSVLogger(folder, version="one"), library.TensorBoardLogger(folder, version="one")]
    if kind == "wandb":
        settings = import_module("wandb").Settings(
            console="off", disable_git=True, disable_code=True, x_disable_stats=True, x_disable_meta=True,
            x_file_stream_transmit_interval=0.1,
        )  # fmt: skip
        return [
            library.WandbLogger(project="p", save_dir=folder, settings=settings, **wandb_run(root, job="job"))
        ]
    if kind == "mlflow":
        tracked = library.MLFlowLogger(
            tracking_uri=f"sqlite:///{folder}/mlflow.db", **mlflow_run(root, job="job")
        )
        assert tracked.run_id  # begun before the script seeds: MLflow draws a name
        return [tracked]
    return []


def fit(at: str, kind: str, pause: int = 10**6, cold: tuple[str, ...] = ()) -> None:
    folder, root = f"{at}/logs", f"{at}/runs"
    torch.set_num_threads(1)
    leave_cold(list(cold))
    wait_for_saves()
    Path(folder).mkdir(exist_ok=True)
    used = loggers(kind, folder, root)
    lightning.seed_everything(1, verbose=False)
    module = Drawing()
    ours = CheckpointCallback(root, job="job", every=EVERY, keep_last=1000)
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=EPOCHS, log_every_n_steps=1, logger=used, enable_model_summary=False,
        enable_checkpointing=False, num_sanity_val_steps=0, default_root_dir=folder, callbacks=[ours, Pauses(ours, pause, Path(at, "paused"))],
    )  # fmt: skip
    trainer.fit(module)
    assert len(module.drawn) == BATCHES * EPOCHS
    weights = [module.net.weight.item(), module.net.bias.item()]
    tell(Path(at, "ended"), json.dumps([module.drawn, weights, random.random(), float(torch.rand(1))]))
    if kind == "wandb":
        import_module("wandb").finish()


def main() -> None:
    for name in sys.argv[1:]:
        import_module(name)
    warm_up()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    serve(json.loads, lambda order: fit(**order), log=lambda order: f"{order['at']}/log")


if __name__ == "__main__":
    main()
