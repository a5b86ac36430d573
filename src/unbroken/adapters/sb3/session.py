"""One `learn()` call of one run: the training loop on one side, the engine on the other.

Not promised: two trainings of one run at the same time in one process; the second ends the first's session.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from unbroken.adapters.sb3 import reaping
from unbroken.adapters.sb3.ars import UpdateLoop, is_ars
from unbroken.adapters.sb3.callbacks import below, called_every_step
from unbroken.adapters.sb3.environments import Environment, look_around, processes
from unbroken.adapters.sb3.loop import Listener
from unbroken.adapters.sb3.outputs import go_on, mark_in_board
from unbroken.adapters.sb3.position import END, Position
from unbroken.adapters.sb3.source import TrainingSource
from unbroken.adapters.sb3.stretches import Stretches
from unbroken.adapters.sb3.training_loop import TrainingLoop
from unbroken.adapters.sb3.upcoming import Evaluations
from unbroken.adapters.sb3.warm_up import WarmUp
from unbroken.adapters.trackers.places import IN_USE
from unbroken.capture import verdicts
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.guards.warm_up import WarmUpTrial
from unbroken.engine.report import ResumeReport
from unbroken.engine.saying import say
from unbroken.engine.schedule import Every
from unbroken.engine.settings import Settings
from unbroken.errors import ConfigError
from unbroken.repo.repository import Repository

NEVER = 2**62
"""Steps that no training has."""

_finished: dict[tuple[str, str], int] = {}
"""How many trainings of each run this process has behind it."""
_open: dict[tuple[str, str], Session] = {}


class Metrics(Mapping[str, float]):
    """The latest results of a training, computed only when somebody looks."""

    def __init__(self, model: BaseAlgorithm, root: BaseCallback) -> None:
        self._model = model
        self._root = root

    def _now(self) -> dict[str, float]:
        found: dict[str, float] = {}
        episodes = [info for info in self._model.ep_info_buffer or () if "r" in info]
        if episodes:
            found["rollout/ep_rew_mean"] = float(np.mean([info["r"] for info in episodes]))
            found["rollout/ep_len_mean"] = float(np.mean([info["l"] for info in episodes]))
        for callback in below(self._root):
            if isinstance(callback, EvalCallback) and np.isfinite(callback.last_mean_reward):
                found["eval/mean_reward"] = float(callback.last_mean_reward)
        # What the last update has told the logger; gone for a moment when the logger has written it out.
        told = getattr(getattr(self._model, "_logger", None), "name_to_value", {})
        for name, value in tuple(told.items()):
            if name.startswith("train/") and "loss" in name and isinstance(value, (int, float, np.number)):
                found[name] = float(value)
        return found

    def __getitem__(self, name: str) -> float:
        return self._now()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def __bool__(self) -> bool:
        return True


def loop_of(model: BaseAlgorithm, callback: BaseCallback, listener: Listener) -> TrainingLoop | UpdateLoop:
    """Return the loop by which `model` is trained. Raises ConfigError for one that is not known."""
    if isinstance(model, (OnPolicyAlgorithm, OffPolicyAlgorithm)):
        return TrainingLoop(model, callback, listener)
    if is_ars(model):
        return UpdateLoop(model, callback, listener)
    raise ConfigError(
        f"{type(model).__name__} has a training loop that is not known.",
        hint="Known are all algorithms of SB3 and of sb3-contrib, and what descends from them;"
        " a loop of your own is saved by unbroken.Run.",
    )


class Session:
    """Listens to a loop and drives an engine. `ours` is the callback that the user put in."""

    def __init__(
        self,
        model: BaseAlgorithm,
        ours: BaseCallback,
        settings: Settings,
        *,
        save_freq: int | None = None,
        verbose: int = 0,
        warm_up: WarmUp | None = None,
    ) -> None:
        self.loop = loop_of(model, ours, self)
        self.report: ResumeReport | None = None
        self._model = model
        self._ours = ours
        self._settings = settings
        self._stretches = Stretches(settings.overridden(os.environ).grace, time.monotonic)
        self._warm_up = warm_up
        self._save_freq = save_freq
        self._every_calls = 0
        """Calls between saves, where calls are not steps of the vector of environments."""
        self._verbose = verbose
        self._engine: CheckpointEngine | None = None
        self._evaluations: Evaluations | None = None
        self._source: TrainingSource | None = None
        self._metrics: Metrics | None = None
        root = settings.overridden(os.environ).root
        self._key = (os.path.abspath(root), settings.overridden(os.environ).job)

    def open(self) -> None:
        """Put the hooks in place; everything else waits for the first rollout."""
        before = _open.get(self._key)
        if before is not None:
            before.drop()  # its `learn()` has raised where no hook could see it
        _open[self._key] = self
        self.loop.install()

    def drop(self) -> None:
        """End without a final checkpoint."""
        self.loop.remove()
        _open.pop(self._key, None)
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def called(self, n_calls: int) -> None:
        """The user's callback was called for the `n_calls`-th time."""
        if self._engine is not None and self._every_calls and n_calls % self._every_calls == 0:
            self._engine.make_due(f"every {self._every_calls:,} calls")

    def request(self, reason: str) -> None:
        """Somebody asks for a save, from any thread. Where there is no engine, nothing was trained unsaved."""
        engine = self._engine
        if engine is not None:
            engine.request_save(reason)

    def begin(self, root: BaseCallback) -> Position | None:
        """Restore, if there is anything, and say so."""
        model, settings = self._model, self._settings.overridden(os.environ)
        kept = {} if settings.resume == "never" else verdicts.recorded(settings.root, settings.job)
        around = look_around(model, root, kept)
        source = self._source = TrainingSource(model, root, self._ours, around)
        interval, often = self._interval(root)
        warm_up = self._warm_up
        trial = None if warm_up is None else WarmUpTrial(partial(warm_up, model), always=warm_up.always)
        engine = CheckpointEngine(
            source, interval, segment=_finished.get(self._key, 0), trial=trial, finders=IN_USE
        )
        self._metrics = Metrics(model, root)
        wanted = model._total_timesteps
        report = engine.resume(step=model.num_timesteps)
        self._engine = engine
        self._evaluations = Evaluations(model, root)
        position = Position.from_record(source.position)
        if not report.restored:
            report = replace(report, also=(*report.also, *often))
        elif position.kind == END and wanted > model.num_timesteps:
            report = replace(report, goes_on_to=wanted)
        self.report = report
        self._account_for_workers(engine, around.environments)
        self._say(report.text)
        if not report.restored:
            self._say(*(f"unbroken: {line}" for line in around.says))
            source.live = self.loop.position
            mark_in_board(engine, model)
            return None
        go_on(model, root, source.outputs)
        mark_in_board(engine, model)
        self._ours.n_calls = position.calls
        source.live = position
        return position

    def at_step(self, position: Position) -> None:
        """Save if it is time."""
        engine, evaluations = self._engine, self._evaluations
        assert engine is not None
        assert evaluations is not None
        self._stretches.end()
        saved = engine.step(self._model.num_timesteps, episodes=position.episodes, metrics=self._metrics)
        if saved and self._verbose > 1:
            self._say(f"unbroken: saving step {self._model.num_timesteps:,}")
        coming = evaluations.coming()
        if coming:
            if not saved and any(map(self._stretches.is_long, coming)):
                self._hold(engine, position)
            self._stretches.begin(coming)

    @contextmanager
    def during(self, what: str, position: Position) -> Generator[None]:
        """Hold a copy of the state if `what` comes next and took longer than the grace the last time."""
        engine = self._engine
        assert engine is not None
        self._stretches.end()
        if self._stretches.is_long(what):
            self._hold(engine, position)
        else:
            engine.release()
        self._stretches.begin([what])
        try:
            yield
        finally:
            self._stretches.end()
        engine.release()

    def _hold(self, engine: CheckpointEngine, position: Position) -> None:
        engine.hold(self._model.num_timesteps, episodes=position.episodes, metrics=self._metrics)

    def finished(self, position: Position) -> None:
        """Commit the end, unless it was an end already when this process came."""
        engine, self._engine = self._engine, None
        _open.pop(self._key, None)
        assert engine is not None
        with engine:
            try:
                if not self.loop.skipped:
                    engine.save(
                        self._model.num_timesteps,
                        reason="end of training",
                        position="end",
                        episodes=position.episodes,
                        metrics=self._metrics,
                    )
            finally:
                # An error may be of a save before. Were the end lost, a further `learn()` would begin another
                # training after it.
                if self.loop.skipped or engine.is_finished:
                    _finished[self._key] = _finished.get(self._key, 0) + 1

    def abandoned(self, error: BaseException) -> None:
        """Give the run back; what is being written is still written."""
        _open.pop(self._key, None)
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.__exit__(type(error), error, error.__traceback__)

    def never_began(self) -> None:
        """The loop was not entered: there was nothing to do in this `learn()`."""
        self.drop()

    def _interval(self, root: BaseCallback) -> tuple[Settings, tuple[str, ...]]:
        """Return the settings with the interval that SB3's `save_freq` means here, and how it is said."""
        calls, n_envs = self._save_freq, self._model.n_envs
        if calls is None:
            return self._settings, ()
        if called_every_step(root, self._ours):
            steps = calls * n_envs
            said = (f"save_freq={calls:,} is every {steps:,} steps of {n_envs} environments",)
            return self._settings.changed(every=Every(steps=steps)), said if n_envs > 1 else ()
        # Below an event callback a call is an event, and nobody knows how many steps that is.
        self._every_calls = calls
        return self._settings.changed(every=Every(steps=NEVER)), (f"saves every {calls:,} events",)

    def _account_for_workers(self, engine: CheckpointEngine, environments: Sequence[Environment]) -> None:
        repository = Repository.open(engine.settings.root, engine.settings.job)
        ended = reaping.reap(repository.workers())
        if ended:
            self._say(f"unbroken: ended {len(ended)} environment workers that the last process left behind")
        own = [worker for one in environments for worker in processes(one)]
        if own:
            engine.record_workers(own)

    @staticmethod
    def _say(*lines: str) -> None:
        say(*lines)
