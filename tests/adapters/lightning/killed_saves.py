"""`ROOT KILLS SEED`: trains in one child after the other, each the same run, and kills it at a random moment while
it saves at every step. For each kill one JSON object: the steps of the saves that the child had begun, and what
the run holds afterwards.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import lightning

from exactness.forked import warm_up
from tests.adapters.lightning import trainings
from unbroken.engine.engine import CheckpointEngine
from unbroken.lightning import CheckpointCallback
from unbroken.repo.repository import Repository


def train(root: Path, told: int) -> None:
    """Train without an end, and write the step of each save as it begins."""
    save = CheckpointEngine.save

    def telling(self: CheckpointEngine, step: int, **options: Any) -> Any:
        os.write(told, f"{step}\n".encode())
        return save(self, step, **options)

    CheckpointEngine.save = telling  # type: ignore[method-assign]
    module, *_ = trainings.regression(monitor="loss")
    lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        max_epochs=-1,
        limit_val_batches=0,
        callbacks=[CheckpointCallback(root, job="job", every=1)],
    ).fit(module)


def killed(root: Path, moment: random.Random) -> list[int]:
    """Start a child, kill it while it saves, and return the steps that it told."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            train(root, writing)
        except BaseException:  # noqa: BLE001 - told, and the child ends
            traceback.print_exc()
        os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as lines:
        told = [int(lines.readline()) for _ in range(moment.randint(3, 6))]
        # Not to wait for anything: the moment of the kill is the random thing here.
        time.sleep(moment.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        told += [int(line) for line in lines if line.endswith("\n")]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    return told


def main() -> None:
    root, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    warm_up()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    moment = random.Random(seed)
    for _ in range(kills):
        told = killed(root, moment)
        repository = Repository.open(root, "job")
        commits = repository.commits()
        faults = [str(fault) for commit in commits for fault in repository.verify(commit)]
        steps = [commit.step for commit in commits]
        print(json.dumps({"told": told, "committed": steps, "faults": faults}), flush=True)


if __name__ == "__main__":
    main()
