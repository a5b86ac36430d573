"""Two processes under DDP that log as a trainer does by itself: `tracker_ranks_script.py FOLDER [BATCH]`. At this batch rank 0 is killed."""

from __future__ import annotations

import signal
import sys

import lightning
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from tests.adapters.lightning.runner import Killer, wait_for_saves
from tests.adapters.lightning.test_tracker_directories import Logs
from tests.adapters.lightning.trainings import rank_of_process, seed
from unbroken.lightning import CheckpointCallback

if __name__ == "__main__":
    folder, *fault = sys.argv[1:]
    wait_for_saves()
    seed()
    at = int(fault[0]) if fault and rank_of_process() == 0 else 2**62
    trainer = lightning.Trainer(
        accelerator="cpu", strategy="ddp", devices=2, max_epochs=2, log_every_n_steps=1, enable_model_summary=False,
        default_root_dir=folder, logger=[TensorBoardLogger(folder), CSVLogger(folder, name="csv")],
        callbacks=[CheckpointCallback(f"{folder}/run", every=2), Killer(at, signal.SIGKILL)],
    )  # fmt: skip
    trainer.fit(Logs())
