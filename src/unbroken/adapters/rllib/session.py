"""One Algorithm of one run: its iterations on one side, the engine on the other.

The clean point is the end of an iteration, when `train()` has done everything, callbacks included. What
hears of it are attributes of the instance, gone when the Algorithm is stopped; no class is touched.

Not promised: a save within an iteration. An Algorithm that is stopped in the middle of one (an exception, a
signal) goes on from the last end of one.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from unbroken.adapters.rllib import agent
from unbroken.adapters.rllib.actors import ActorsMissing
from unbroken.adapters.rllib.config import clock_warning
from unbroken.adapters.rllib.environments import attach_again, look_around
from unbroken.adapters.rllib.source import RECREATED, AlgorithmSource
from unbroken.adapters.rllib.traffic import DROPPED_PIECES, DROPPED_STEPS, Traffic, is_asynchronous
from unbroken.adapters.rllib.trial import is_of_another, trial_of
from unbroken.adapters.trackers.places import IN_USE
from unbroken.capture import verdicts
from unbroken.capture.hooks import Hook
from unbroken.engine import signals
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.report import ResumeReport
from unbroken.engine.saying import say
from unbroken.engine.settings import Settings
from unbroken.engine.trials import PATIENCE, patiently
from unbroken.errors import ConfigError, SaveFailed

SAMPLED = ("env_runners", "num_env_steps_sampled_lifetime")
EPISODES = ("env_runners", "num_episodes_lifetime")

_REVIVAL = 60.0
"""Seconds in which Ray has to start an env runner in the place of a dead one at the end of a training."""
_PAUSE = 0.1
_COUNTED = ("_iteration", "_time_total", "_timesteps_total", "_episodes_total")

_finished: dict[tuple[str, str], int] = {}
"""How many trainings of each run this process has behind it."""


class IterationLengthWarning(UserWarning):
    """How long an iteration lasts depends on the clock, so that no two runs are equal."""


class EnvRunnerRecreatedWarning(UserWarning):
    """An env runner died and began anew: from here on the run is not the undisturbed one."""


class Session:
    """Resumes an Algorithm that was just built, and saves at the ends of its iterations."""

    def __init__(self, algorithm: Any, settings: Settings) -> None:
        self.report: ResumeReport | None = None
        self._algorithm = algorithm
        self._settings = settings
        self._engine: CheckpointEngine | None = None
        self._clean = True
        """Whether the Algorithm stands between two iterations."""
        self._saved_end = -1
        """The step of the end that is saved, if nothing was trained since."""
        self._metrics: Mapping[str, float] = {}
        # Not `train`: Tune calls that of the class, in whose process no attribute of the instance is asked.
        self._step = Hook(algorithm, "step", self._iteration_begins, keeper=self)
        self._log_result = Hook(algorithm, "log_result", self._iteration_ends, keeper=self)
        self._cleanup = Hook(algorithm, "cleanup", self._stopped, keeper=self)
        self._traffic = Traffic(algorithm) if is_asynchronous(algorithm) else None
        self._load = Hook(algorithm, "load_checkpoint", self._offered, keeper=self)
        self._hooks = (self._step, self._log_result, self._cleanup, self._load)
        # Of a trial the environment has been asked before: its job is one for all of them.
        self._environment = {} if trial_of(algorithm) else dict(os.environ)
        seen = settings.overridden(self._environment)
        self._key = (os.path.abspath(os.fspath(seen.root)), seen.job)

    @property
    def step(self) -> int:
        """How many environment steps were sampled over the whole run, as RLlib counts them."""
        return int(self._algorithm.metrics.peek(SAMPLED, default=0))

    @property
    def episodes(self) -> int:
        """How many episodes have ended over the whole run."""
        return int(self._algorithm.metrics.peek(EPISODES, default=0))

    def open(self) -> None:
        """Restore, if there is anything, say so, and listen from here on."""
        algorithm, settings = self._algorithm, self._settings.overridden(self._environment)
        clocks = clock_warning(algorithm.config)
        if clocks and self._traffic is None:
            warnings.warn(
                f"This run cannot be repeated exactly: {clocks}.", IterationLengthWarning, stacklevel=2
            )
        seed_buffer(algorithm)
        kept = {} if settings.resume == "never" else verdicts.recorded(settings.root, settings.job)
        self._around = around = look_around(algorithm, kept)
        if self._traffic is not None:
            self._traffic.install()
        self._source = AlgorithmSource(algorithm, around, self._traffic)
        signals.replace_where(_only_ends)
        engine = CheckpointEngine(
            self._source,
            self._settings,
            segment=_finished.get(self._key, 0),
            finders=IN_USE,
            environment=self._environment,
        )
        patience = PATIENCE if trial_of(algorithm) else 0.0
        report = patiently(partial(engine.resume, step=self.step), patience)
        if self._traffic is not None:
            self._traffic.remember()
        self._source.restored_all()
        self._engine = engine
        iteration = f"iteration {algorithm.training_iteration:,}"
        self.report = replace(report, also=(iteration, *report.also, *self._dropped()))
        if report.finished:
            self._saved_end = report.step
        _say(self.report.text)
        if not report.restored:
            _say(*(f"unbroken: {name}: {verdict}" for name, verdict in around.says.items()))
        self._counted = {name: getattr(algorithm, name) for name in _COUNTED}
        for hook in self._hooks:
            hook.install()
        # After the engine's own, so before it: a script that never stops its Algorithm has an end as well.
        atexit.register(self._at_exit)

    def recreated(self, group: Any, indices: Sequence[int]) -> None:
        """Env runners died, and RLlib has started others in their place."""
        if self._engine is None:
            return
        progress = self._source.progress
        for index in indices:
            progress[RECREATED] += 1
            group.foreach_env_runner(
                agent.order(agent.begin_anew, progress[RECREATED]),
                local_env_runner=False,
                remote_worker_ids=[index],
            )
            attach_again(group, index, self._around.verdicts)
        warnings.warn(
            f"Env runners {', '.join(map(str, indices))} died at step {self.step:,} and began anew, each seeded"
            " differently from the one before it. Their open episodes are lost: from here on the run is no longer"
            " the one that nothing had disturbed.",
            EnvRunnerRecreatedWarning,
            stacklevel=2,
        )

    def _offered(self, checkpoint: Any) -> Any:
        """A checkpoint of RLlib's own is to be loaded over what was restored."""
        algorithm = self._algorithm
        if is_of_another(algorithm, checkpoint):
            raise ConfigError(
                "Tune gives this trial the checkpoint of another one, which holds only a part of its state.",
                hint="Leave out schedulers that exploit (PBT), or train by unbroken.tune in a trainable of your own.",
            )
        if not trial_of(algorithm) or self.report is None or not self.report.restored:
            return self._load.original(checkpoint)
        vars(algorithm).update(self._counted)  # Tune has set them by its own record already
        _say(f"unbroken: goes on at step {self.step:,}; RLlib's own checkpoint of this trial is left alone")
        return None

    def _iteration_begins(self, *args: Any, **kwargs: Any) -> Any:
        self._clean = False
        return self._step.original(*args, **kwargs)

    def _iteration_ends(self, result: Any, *args: Any, **kwargs: Any) -> Any:
        told = self._log_result.original(result, *args, **kwargs)
        self._clean = True
        self._metrics = metrics_of(result)
        if self._engine is not None:
            self._save_if_due(self._engine)
        return told

    def _save_if_due(self, engine: CheckpointEngine) -> None:
        try:
            engine.step(self.step, episodes=self.episodes, metrics=self._metrics)
        except (SystemExit, KeyboardInterrupt):
            self._engine = None  # told to end, it has saved and given the run back
            raise
        except ActorsMissing as error:
            if not self._algorithm.config.restart_failed_env_runners:
                raise
            # RLlib starts others before the next iteration, and the save is still due after it.
            warnings.warn(
                f"{error.message} It is saved after the next one.", EnvRunnerRecreatedWarning, stacklevel=4
            )
            engine.request_save("the save before could not reach every env runner")

    def _stopped(self, *args: Any, **kwargs: Any) -> Any:
        try:
            self._end()
        finally:
            result = self._cleanup.original(*args, **kwargs)
        return result

    def _end(self) -> None:
        """Commit the end, if the Algorithm stands at one, and give the run back."""
        for hook in self._hooks:
            hook.remove()
        if self._traffic is not None:
            self._traffic.remove()
        atexit.unregister(self._at_exit)
        engine = self._engine
        if engine is None:
            return
        try:
            with engine:
                needed = self._clean and self.step != self._saved_end
                try:
                    if needed:
                        self._save_end(engine)
                finally:
                    # An error may be of a save before; of an end that was lost the next one must know nothing.
                    if not needed or engine.is_finished:
                        _finished[self._key] = _finished.get(self._key, 0) + 1
        finally:
            self._engine = None

    def _save_end(self, engine: CheckpointEngine) -> None:
        save = partial(
            engine.save,
            self.step,
            reason="end of training",
            position="end",
            episodes=self.episodes,
            metrics=self._metrics,
        )
        try:
            save()
        except ActorsMissing as error:
            if not self._revived():
                raise SaveFailed(
                    f"The end of the training, at step {self.step:,}, could not be saved: {error.message}",
                    hint="Checkpoints committed before it are intact; the same command goes on from the newest.",
                ) from error
            save()

    def _revived(self) -> bool:
        """Let RLlib start env runners in the place of dead ones, which is told of and counted as always."""
        algorithm = self._algorithm
        both = (
            (algorithm.env_runner_group, algorithm.config),
            (algorithm.eval_env_runner_group, algorithm.evaluation_config),
        )
        groups = [(group, config) for group, config in both if group is not None]
        until = time.monotonic() + _REVIVAL
        while algorithm.config.restart_failed_env_runners and time.monotonic() < until:
            for group, config in groups:
                restored = algorithm.restore_env_runners(group)  # none while the new process is starting
                if restored:
                    algorithm._make_on_env_runners_recreated_callbacks(
                        config=config, env_runner_group=group, restored_env_runner_indices=restored
                    )
            if all(group.num_healthy_remote_workers() == group.num_remote_workers() for group, _ in groups):
                return True
            time.sleep(_PAUSE)
        return False

    def _dropped(self) -> tuple[str, ...]:
        """Return what the line says of samples that were under way at saves."""
        dropped = self._traffic.dropped if self._traffic is not None else {}
        steps, pieces = dropped.get(DROPPED_STEPS, 0), dropped.get(DROPPED_PIECES, 0)
        if not steps:
            return ()
        return (f"{steps:,} sampled steps ({pieces:,} pieces of episodes) were under way and are dropped",)

    def _at_exit(self) -> None:
        if getattr(sys, "last_value", None) is not None:
            self._clean = False  # the script ended by an error: that is no end of its training
        self._end()


def _only_ends(handler: object) -> bool:
    """Whether it is the handler of SIGTERM that `ray.init` puts into a driver, which does nothing but exit."""
    return (getattr(handler, "__module__", ""), getattr(handler, "__qualname__", "")) == (
        "ray._private.worker",
        "init.<locals>.sigterm_handler",
    )


def seed_buffer(algorithm: Any) -> None:
    """Seed the generator of the replay buffer, which RLlib leaves to the system's entropy, by the run's seed."""
    buffer, seed = algorithm.local_replay_buffer, algorithm.config.seed
    if seed is not None and isinstance(getattr(buffer, "rng", None), np.random.Generator):
        buffer.rng = np.random.default_rng(seed)


def metrics_of(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the returns and losses of an iteration, by names like ``env_runners/episode_return_mean`` and
    ``learners/default_policy/total_loss``."""
    found: dict[str, float] = {}
    for group in ("env_runners", "evaluation/env_runners"):
        values: Any = result
        for key in group.split("/"):
            values = values.get(key, {}) if isinstance(values, Mapping) else {}
        for name, value in values.items() if isinstance(values, Mapping) else ():
            if name.startswith("episode_") and isinstance(value, (int, float, np.number)):
                found[f"{group}/{name}"] = float(value)
    learners = result.get("learners", {})
    for module, values in learners.items() if isinstance(learners, Mapping) else ():
        for name, value in values.items() if isinstance(values, Mapping) else ():
            if "loss" in name and isinstance(value, (int, float, np.number)):
                found[f"learners/{module}/{name}"] = float(value)
    return found


def _say(*lines: str) -> None:
    say(*lines)
