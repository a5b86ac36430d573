"""Faults that resumed Lightning trainings have had elsewhere, each with what is right.

A kill is an exception here that no hook of a callback gets to see; `test_exactness` has real ones.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from .fits import cut, fit, history, quiet
from .trainings import Regression, Training, dqn, regression, stopping, top_three

pytestmark = quiet


def test_a_resumed_run_makes_as_many_steps_as_were_asked_for(tmp_path: Path) -> None:
    """C6: the step counter grows by one on each resume. 3 epochs of 6 batches over three starts are 18 steps."""
    for _ in range(2):
        cut(regression(), tmp_path, 6, every=6, max_epochs=3)
    module, trainer = fit(regression(), tmp_path, every=6, max_epochs=3)
    assert trainer.global_step == 18
    assert len(module.seen) == 18


@pytest.mark.parametrize("at", [4, 5, 6, 7, 11])
def test_no_batch_is_used_twice_and_none_is_left_out(at: int, tmp_path: Path) -> None:
    """C7, G8: a batch that an update has used is used again; the epoch's data begin anew. Right: over both
    starts each epoch gives every batch and every sample once, in the order of the undisturbed run."""
    expected, _ = fit(regression(), tmp_path / "U", every=1, max_epochs=3)
    cut(regression(), tmp_path / "R", at, every=1, max_epochs=3)
    module, _ = fit(regression(), tmp_path / "R", every=1, max_epochs=3)
    assert module.seen == expected.seen
    assert [(epoch, batch) for epoch, batch, _ in module.seen] == [(e, b) for e in range(3) for b in range(6)]
    for epoch in range(3):
        samples = Counter(x for e, _, batch in module.seen if e == epoch for x in batch)
        assert samples == Counter(range(12))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.gpu
def test_dropout_on_the_gpu_goes_on(tmp_path: Path) -> None:
    """D6: generators of GPUs are left out."""
    expected, _ = fit(dqn(), tmp_path / "U", every=5, max_steps=20, accelerator="gpu", devices=1)
    cut(dqn(), tmp_path / "R", 13, every=5, max_steps=20, accelerator="gpu", devices=1)
    module, _ = fit(dqn(), tmp_path / "R", every=5, max_steps=20, accelerator="gpu", devices=1)
    weights = module.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in expected.state_dict().items())


LOSSES = (5.0, 3.0, 4.0, 4.0, 4.0, 4.0, 4.0)


@pytest.mark.parametrize("epochs", [1, 2, 3, 4])
def test_early_stopping_stops_at_the_same_epoch(epochs: int, tmp_path: Path) -> None:
    """F6: the patience is restored and reset, or is one epoch old. With 5, 3, 4, 4, 4 and a patience of 3
    training stops after the fifth epoch, wherever it was split."""
    cut(stopping(losses=LOSSES), tmp_path, 6 * epochs, every=1, max_epochs=7)
    module, trainer = fit(stopping(losses=LOSSES), tmp_path, every=1, max_epochs=7)
    assert trainer.current_epoch == 5
    assert [epoch for epoch, _ in module.validated] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("at", [5, 6, 7, 12])
def test_a_validation_does_not_come_again_because_of_a_resume(at: int, tmp_path: Path) -> None:
    """A checkpoint at the end of an epoch is of the state after its validation."""
    cut(regression(), tmp_path, at, every=1, max_epochs=3)
    module, _ = fit(regression(), tmp_path, every=1, max_epochs=3)
    assert module.validated == [(0, 6), (1, 12), (2, 18)]


def test_the_first_start_and_the_tenth_are_the_same_call(tmp_path: Path) -> None:
    """K3: the first start fails because there is nothing to resume."""
    root = tmp_path / "not" / "there yet"
    cut(regression(), root, 2, every=100, max_epochs=1)  # before anything but the start was saved
    for at in (3, 1):
        cut(regression(), root, at, every=1, max_epochs=1)
    module, trainer = fit(regression(), root, every=1, max_epochs=1)
    assert trainer.global_step == 6
    assert module.seen[-1][:2] == (0, 5)


class Term(Callback):
    """Sends SIGTERM to this process in a batch."""

    def __init__(self, at: int) -> None:
        self.left = at

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    ("at", "saved", "validate"),
    [(4, 4, True), (6, 6, False), (6, 0, True)],
    ids=["batch", "epoch", "validation"],
)
def test_a_sigterm_saves_what_the_batch_has_come_to(
    at: int, saved: int, validate: bool, tmp_path: Path
) -> None:
    """K2: SIGTERM is ignored, and the job killed without a save. Right: a committed checkpoint, of the very
    batch; in the last one of an epoch with what belongs to the epoch's end; or a clean exit with the last
    one intact, where the signal is heeded inside of a validation."""

    def training() -> Training:
        return regression(monitor="val_loss" if validate else "loss")

    options: dict[str, Any] = {"max_epochs": 2, **({} if validate else {"limit_val_batches": 0})}
    expected, _ = fit(training(), tmp_path / "U", every=100, **options)
    with pytest.raises(SystemExit):
        fit(training(), tmp_path / "R", Term(at), every=100, **options)
    assert history(tmp_path / "R")[-1] == (saved, "step" if saved else "start")
    module, _ = fit(training(), tmp_path / "R", every=100, **options)
    assert module.seen == expected.seen
    assert module.validated == expected.validated
    weights = module.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in expected.state_dict().items())


def best_of(callbacks: list[Any]) -> ModelCheckpoint:
    return next(c for c in callbacks if isinstance(c, ModelCheckpoint))


def test_files_of_another_directory_are_never_removed_and_their_scores_count(tmp_path: Path) -> None:
    """L3: a run that is resumed into another directory deletes what the first has written. Right: not a byte
    there changes, and 3.0 stays the best although only 4.0 to 6.0 come after it."""
    losses = (5.0, 3.0, 4.0, 6.0, 5.5, 4.5)
    before, after = str(tmp_path / "before"), str(tmp_path / "after")
    cut(top_three(losses=losses, directory=before), tmp_path / "run", 18, every=1, max_epochs=6)
    files = {path.name: path.read_bytes() for path in Path(before).iterdir()}
    assert len(files) == 3
    training = top_three(losses=losses, directory=after)
    fit(training, tmp_path / "run", every=1, max_epochs=6)
    assert {path.name: path.read_bytes() for path in Path(before).iterdir()} == files
    best = best_of(training[2])
    assert best.best_model_score == 3.0
    assert best.best_model_path == f"{before}/epoch=1.ckpt"
    assert sorted(score.item() for score in best.best_k_models.values()) == [3.0, 4.0, 4.5]


def test_the_best_three_are_those_of_all_starts(tmp_path: Path) -> None:
    """L4: the list of the best is empty after a resume. Right: three in all, here 1, 2 and 3."""
    losses = (5.0, 4.0, 3.0, 6.0, 2.0, 1.0)
    directory = str(tmp_path / "files")
    cut(top_three(losses=losses, directory=directory), tmp_path / "run", 18, every=1, max_epochs=6)
    training = top_three(losses=losses, directory=directory)
    fit(training, tmp_path / "run", every=1, max_epochs=6)
    assert sorted(score.item() for score in best_of(training[2]).best_k_models.values()) == [1.0, 2.0, 3.0]
    assert sorted(p.name for p in Path(directory).iterdir()) == [f"epoch={n}.ckpt" for n in (2, 4, 5)]


def test_files_written_after_the_checkpoint_are_written_again_under_their_names(tmp_path: Path) -> None:
    """A file that the killed process left makes no second one, `epoch=1-v1.ckpt`, beside it."""
    losses = (5.0, 4.0, 3.0, 2.0)
    directory = str(tmp_path / "files")
    cut(top_three(losses=losses, directory=directory), tmp_path / "run", 17, every=7, max_epochs=4)
    assert [step for step, _ in history(tmp_path / "run")][-1] == 14
    written = sorted(p.name for p in Path(directory).iterdir())
    cut(top_three(losses=losses, directory=directory), tmp_path / "run", 9, every=7, max_epochs=4)
    fit(top_three(losses=losses, directory=directory), tmp_path / "run", every=7, max_epochs=4)
    assert written == ["epoch=0.ckpt", "epoch=1.ckpt"]
    assert sorted(p.name for p in Path(directory).iterdir()) == [f"epoch={n}.ckpt" for n in (1, 2, 3)]


def test_lightnings_own_files_hold_nothing_of_the_callback(tmp_path: Path) -> None:
    module, trainer = fit(regression(), tmp_path / "run", every=1, max_epochs=1)
    trainer.save_checkpoint(tmp_path / "own.ckpt")
    other = Regression.load_from_checkpoint(tmp_path / "own.ckpt")
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in module.state_dict().items())
    assert not any("CheckpointCallback" in key for key in torch.load(tmp_path / "own.ckpt")["callbacks"])
