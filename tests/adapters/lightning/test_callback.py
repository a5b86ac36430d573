"""What a person sees of the callback: arguments, a finished run, changed settings, what stands beside it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

import lightning
import torch
from lightning.pytorch.callbacks import Callback, LearningRateMonitor, Timer
from torch.utils.data import DataLoader, Dataset, Sampler

from unbroken.adapters.lightning import session
from unbroken.adapters.lightning.fit_loop import HOOKS
from unbroken.errors import ConfigError, NoUsableCheckpoint, StateMismatch
from unbroken.lightning import Best, CheckpointCallback, Every
from unbroken.repo.repository import Repository
from unbroken.types import Fidelity

from .fits import Bar, Cut, cut, fit, history, quiet, trainer_of
from .trainings import Regression, Training, dqn, regression, seed, top_three

pytestmark = quiet


def weights(module: torch.nn.Module) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("every", [0, -1, 2.5, "ten"])
def test_every_is_a_number_of_steps(every: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        CheckpointCallback(tmp_path, every=every)


def test_episodes_say_nothing_here(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"steps"):
        CheckpointCallback(tmp_path, every=Every(episodes=3))


@pytest.mark.parametrize("name", ["sync_timeout", "start_timeout"])
def test_timeouts_are_seconds(name: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {name: 0}
    with pytest.raises(ConfigError, match=name):
        CheckpointCallback(tmp_path, **options)


def test_a_fast_run_for_debugging_is_no_run(tmp_path: Path) -> None:
    fit(regression(), tmp_path / "run", fast_dev_run=True)
    assert not (tmp_path / "run").exists()


def test_one_training_is_one_run(tmp_path: Path) -> None:
    module, *_ = regression()

    class Own(CheckpointCallback):  # two of one class Lightning refuses by itself
        pass

    ours, other = CheckpointCallback(tmp_path / "a"), Own(tmp_path / "b")
    with pytest.raises(ConfigError, match="has 2 of unbroken's CheckpointCallbacks"):
        trainer_of((module, {}, [other]), ours, max_epochs=1).fit(module)
    assert not any(tmp_path.iterdir())


def test_must_demands_a_checkpoint(tmp_path: Path) -> None:
    module, *_ = regression()
    ours = CheckpointCallback(tmp_path, resume="must")
    with pytest.raises((ConfigError, NoUsableCheckpoint)):
        trainer_of((module, {}, []), ours, max_epochs=1).fit(module)
    fit(regression(), tmp_path, max_epochs=1)  # and the run was given back


def test_a_finished_run_says_so_and_trains_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, _ = fit(regression(), tmp_path, every=4, max_epochs=2)
    before = history(tmp_path)
    capsys.readouterr()
    module, trainer = fit(regression(), tmp_path, every=4, max_epochs=2)
    assert "finished" in capsys.readouterr().err
    assert weights(module) == weights(expected)
    assert (trainer.global_step, trainer.current_epoch) == (12, 2)
    assert module.seen == expected.seen
    assert history(tmp_path) == before == [(0, "start"), (4, "step"), (8, "step"), (12, "end")]


def test_a_finished_run_goes_on_to_a_later_end(tmp_path: Path) -> None:
    fit(regression(), tmp_path, every=4, max_epochs=2)
    module, trainer = fit(regression(), tmp_path, every=4, max_epochs=4)
    expected, _ = fit(regression(), tmp_path / "U", every=4, max_epochs=4)
    assert trainer.global_step == 24
    assert weights(module) == weights(expected)
    assert module.seen == expected.seen


def test_a_second_fit_of_a_script_is_a_training_of_its_own(tmp_path: Path) -> None:
    session._finished.clear()
    for _ in range(2):
        ours = CheckpointCallback(tmp_path, job="job", every=100)
        module, *_ = regression()
        trainer_of((module, {}, []), ours, max_epochs=1).fit(module)
    segments = [(c.segment, c.position) for c in Repository.open(tmp_path, "job").commits()]
    assert (1, "end") in segments
    assert (0, "end") in segments


class Broken(Callback):
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        raise ZeroDivisionError


def test_an_error_of_the_training_is_raised_and_no_end_is_committed(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        fit(regression(), tmp_path, Broken(), every=4, max_epochs=2)
    assert history(tmp_path) == [(0, "start"), (4, "step")]
    fit(regression(), tmp_path, every=4, max_epochs=1)
    assert history(tmp_path)[-1] == (6, "end")


def test_nothing_of_the_hooks_is_left(tmp_path: Path) -> None:
    for broken in ([], [Broken()]):
        module, given, others = top_three(losses=(3.0, 2.0), directory=str(tmp_path / "files"))
        ours = CheckpointCallback(tmp_path / "run", job="job", resume="never")
        trainer = trainer_of((module, given, others), ours, *broken, max_epochs=2)
        if broken:
            with pytest.raises(ZeroDivisionError):
                trainer.fit(module)
        else:
            trainer.fit(module)
        loops = [trainer.fit_loop, trainer.fit_loop.epoch_loop]
        assert not [name for loop in loops for name in HOOKS if name in vars(loop)]
        assert not [name for name in ("file_exists", "_remove_checkpoint") if name in vars(others[0])]


class Counting(Callback):
    def __init__(self) -> None:
        self.batches = 0

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.batches += 1


def test_callbacks_may_come_and_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut(regression(), tmp_path, 5, Counting(), every=1, max_epochs=2)
    first, second = Counting(), Counting()
    cut(regression(), tmp_path, 3, first, second, every=1, max_epochs=2)
    assert (first.batches, second.batches) == (8, 3)
    capsys.readouterr()
    fit(regression(), tmp_path, every=1, max_epochs=2)
    assert "callbacks/Counting" in capsys.readouterr().err


def test_what_others_measure_goes_on(tmp_path: Path) -> None:
    timer = Timer(duration="00:01:00:00")
    cut(regression(), tmp_path, 5, timer, every=1, max_epochs=2)
    spent = timer.time_elapsed()
    later = Timer(duration="00:01:00:00")
    fit(regression(), tmp_path, later, every=1, max_epochs=2)
    assert 0 < spent * 0.5 < later.time_elapsed() < 3600


def test_a_changed_setting_is_used_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut(regression(), tmp_path, 5, every=1, max_epochs=1)
    capsys.readouterr()
    _, trainer = fit(regression(), tmp_path, every=1, max_epochs=2)
    assert "max_epochs" in capsys.readouterr().err
    assert trainer.global_step == 12


def test_an_earlier_end_than_the_checkpoint_ends_at_once(tmp_path: Path) -> None:
    cut(regression(), tmp_path, 9, every=1, max_steps=12)
    module, trainer = fit(regression(), tmp_path, every=1, max_steps=5)
    assert trainer.global_step == len(module.seen) == 9
    assert history(tmp_path)[-1] == (9, "end")


def test_another_network_is_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    cut(regression(), tmp_path, 5, every=1, max_epochs=2)
    before = history(tmp_path)
    module, given, others = regression()
    module.net = torch.nn.Sequential(torch.nn.Linear(1, 9), torch.nn.Dropout(0.2), torch.nn.Linear(9, 1))
    with pytest.raises(StateMismatch):
        fit((module, given, others), tmp_path, every=1, max_epochs=2)
    assert history(tmp_path) == before


def test_the_best_is_found_by_what_the_module_logs(tmp_path: Path) -> None:
    module = Regression(losses=(3.0, 1.0, 2.0, 4.0, 5.0))
    ours = CheckpointCallback(tmp_path, job="job", every=6, keep_last=1, best=Best("val_loss", mode="min"))
    trainer_of((module, {}, []), ours, Bar(ours, None), max_epochs=5).fit(module)
    assert [step for step, _ in history(tmp_path)] == [12, 30]


def promise_of_loaders(root: Path) -> tuple[Fidelity, str]:
    repository = Repository.open(root, "job")
    promises = [repository.meta(commit).fidelity["data_loaders"] for commit in repository.commits()]
    assert len({(promise.fidelity, promise.reason) for promise in promises}) == 1, "from the first one on"
    return promises[0].fidelity, promises[0].reason


def test_loaders_with_workers_are_declared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut(regression(workers=1), tmp_path, 4, every=1, max_epochs=2)
    assert "data_loaders" in capsys.readouterr().err
    fidelity, reason = promise_of_loaders(tmp_path)
    assert fidelity is Fidelity.APPROXIMATE
    assert reason.startswith("num_workers=1")
    _, trainer = fit(regression(workers=1), tmp_path, every=1, max_epochs=2)
    assert trainer.global_step == 12


class Shuffled(Sampler[int]):
    """An order that is made up while it goes along."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(1)

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Any:
        left = list(range(12))
        while left:
            yield left.pop(int(torch.randint(len(left), (1,), generator=self.generator)))


class OwnOrder(Regression):
    def train_dataloader(self) -> Any:
        data: Dataset[Any] = super().train_dataloader().dataset
        return DataLoader(data, batch_size=2, sampler=Shuffled())


def test_an_order_that_is_made_up_on_the_way_is_declared(tmp_path: Path) -> None:
    def training() -> Training:
        seed()
        return OwnOrder(), {}, []

    cut(training(), tmp_path, 4, every=1, max_epochs=2)
    fidelity, reason = promise_of_loaders(tmp_path)
    assert fidelity is Fidelity.APPROXIMATE
    assert "Shuffled" in reason
    _, trainer = fit(training(), tmp_path, every=1, max_epochs=2)
    assert trainer.global_step == 12


def test_a_learning_rate_monitor_and_a_resume_get_on(tmp_path: Path) -> None:
    class Silent(LearningRateMonitor):
        def on_train_start(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
            """Without a logger it would refuse to start."""

        def on_train_batch_start(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
            """As above."""

        def on_train_epoch_start(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
            """As above."""

    cut(regression(), tmp_path, 4, Silent(), every=1, max_epochs=1)
    fit(regression(), tmp_path, Silent(), every=1, max_epochs=1)
    assert history(tmp_path)[-1] == (6, "end")


def test_ending_in_the_first_batch_loses_nothing(tmp_path: Path) -> None:
    cut(dqn(), tmp_path / "R", 0, every=1, max_steps=6)
    module, _ = fit(dqn(), tmp_path / "R", every=1, max_steps=6)
    expected, _ = fit(dqn(), tmp_path / "U", every=1, max_steps=6)
    assert weights(module) == weights(expected)
    assert module.epsilon == expected.epsilon


def test_the_root_can_be_moved_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNBROKEN_ROOT", os.fspath(tmp_path / "there"))
    with pytest.raises(Cut):
        fit(regression(), tmp_path / "here", cut_at=2, max_epochs=1)
    assert not (tmp_path / "here").exists()
    assert (tmp_path / "there").exists()
    assert lightning.__version__.startswith("2.")
