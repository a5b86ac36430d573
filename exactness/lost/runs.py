"""Runs of one training: undisturbed, killed by SIGKILL, and resumed once for each part that is left cold.

Each run is a process of its own, forked from this one after the imports. The run that is resumed with nothing left cold is the
control: it must do and learn at every step what the undisturbed one does.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import gymnasium
import msgspec
import torch

from exactness.lost.trainings import Told, Training
from exactness.provenance import Provenance
from exactness.training import leave_cold

NEVER = 10**9
LATER = 7
"""Calls from the checkpoint to the kill."""


class Loss(msgspec.Struct, kw_only=True):
    """What came of leaving a part cold. Steps are calls after the checkpoint, counted from 1; 0: never."""

    training: str
    part: str
    places: list[str]
    acts: int
    """The first step at which another thing was observed, chosen or given."""
    learned: int
    """The first step at which the weights were others."""
    apart: float
    """How far the weights at the end lie from those of the undisturbed run, as a share of the way that these had come
    since the checkpoint."""
    score: float
    """The mean return of the test at the end."""
    error: str = ""
    """Why there is no end: what the training ended with."""


class Figures(msgspec.Struct, kw_only=True):
    """What docs/state.md shows."""

    command: str
    trainings: dict[str, str]
    steps: dict[str, int]
    at: dict[str, int]
    scores: dict[str, float]
    """The mean return of the test, undisturbed."""
    measured: dict[str, Provenance]
    """Where the figures of each training come from: all of one training were measured together."""
    losses: list[Loss]


class NotTheControl(Exception):
    """Resumed with everything, a training is not what it was undisturbed."""


def measured(training: Training, folder: Path, parts: Sequence[str]) -> tuple[float, list[Loss]]:
    """Return the score of the undisturbed run, and what came of losing each part.

    Raises:
        NotTheControl: the resumed run differs without a loss, so that nothing can be said of any.
    """
    undisturbed = _told(training, folder / "U", every=NEVER)
    assert isinstance(undisturbed, Told)
    _run(training, folder / "killed", every=training.at, kill=training.at + LATER)
    losses = []
    for part in ("", *parts):
        shutil.copytree(folder / "killed", folder / "now")
        cold = training.parts[part] if part else ()
        told = _told(training, folder / "now", every=NEVER, cold=cold)
        shutil.rmtree(folder / "now")
        loss = compared(training, part, undisturbed, told)
        if part:
            losses.append(loss)
        elif loss.acts or loss.learned or loss.apart or loss.error:
            raise NotTheControl(f"{training.name}: {loss}")
    return undisturbed.score, losses


def compared(training: Training, part: str, undisturbed: Told, told: Told | str) -> Loss:
    """Compare a run that went on with the undisturbed one."""
    places = list(training.parts.get(part, ()))
    if isinstance(told, str):
        return Loss(
            training=training.name,
            part=part,
            places=places,
            acts=0,
            learned=0,
            apart=0.0,
            score=0.0,
            error=told,
        )
    end, start = undisturbed.weights[training.steps], undisturbed.weights[training.at]
    return Loss(
        training=training.name,
        part=part,
        places=places,
        acts=_first(undisturbed.acts[training.at :], told.acts),
        learned=_first(undisturbed.learned[training.at :], told.learned),
        apart=math.dist(end, told.weights[training.steps]) / math.dist(end, start),
        score=told.score,
    )


def _first(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the number of the first item that differs, from 1; the one after the shorter if they are otherwise equal."""
    for number, (a, b) in enumerate(zip(one, other, strict=False), start=1):
        if a != b:
            return number
    return 0 if len(one) == len(other) else min(len(one), len(other)) + 1


def _told(training: Training, folder: Path, *, every: int, cold: Sequence[str] = ()) -> Told | str:
    status = _run(training, folder, every=every, cold=cold)
    if status:
        return (folder / "error").read_text().strip()
    found = json.loads((folder / "told").read_text())
    found["weights"] = {int(step): weights for step, weights in found["weights"].items()}
    return Told(**found)


def _run(training: Training, folder: Path, *, every: int, kill: int = 0, cold: Sequence[str] = ()) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _child(training, folder, every=every, kill=kill, cold=cold)
            status = 0
        except BaseException:  # noqa: BLE001 - what ended it is what is asked
            (folder / "error").write_text(traceback.format_exc().strip().splitlines()[-1])
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(ended)
    if kill and code != -signal.SIGKILL:
        raise RuntimeError(
            f"{training.name} was to be killed and ended with {code}: {(folder / 'error').read_text()}"
        )
    return code


def _child(training: Training, folder: Path, *, every: int, kill: int, cold: Sequence[str]) -> None:
    os.chdir(folder)
    warnings.simplefilter("ignore")
    gymnasium.logger.min_level = gymnasium.logger.ERROR
    torch.set_num_threads(1)
    if cold:
        leave_cold(list(cold))
    told = Told()
    with contextlib.redirect_stdout(io.StringIO()), (folder / "log").open("w") as log:
        sys.stderr = log
        training.run(training, every, kill, told)
    (folder / "told").write_text(json.dumps(asdict(told)))
