"""`Trainable`: exact checkpoints for a class that Tune runs as a trial.

Between two calls of `step` is the clean point. The run is opened with the first thing that Tune asks for:
`load_checkpoint`, or `train`. Until then nobody can say from where it goes on.

A process that Tune uses for another trial (`reuse_actors`) builds everything anew by `setup`: nothing of
the trial before is left in what is tracked.

Not promised: attributes that are not tracked, and are changed by `step`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any

from ray import tune

from unbroken.adapters.tune.function import HOLD, REFUSED, checked_hold
from unbroken.adapters.tune.pointers import read_pointer
from unbroken.adapters.tune.standing import standing
from unbroken.adapters.tune.trial import Trial, job_name
from unbroken.capture.tracked import Tracked, Variables
from unbroken.engine.options import divided, settings_of, takes_settings
from unbroken.engine.report import ResumeReport
from unbroken.errors import ConfigError
from unbroken.format.pointer import Pointer


class Trainable(tune.Trainable):
    """Base of a trainable. `setup` ends with `self.start(root, …)`; `step` is as ever.

    >>> class Train(Trainable):  # doctest: +SKIP
    ...     def setup(self, config):
    ...         self.net, self.opt, self.env = build(config)
    ...         self.start("/shared/runs", every=10, policy=self.net, optimizer=self.opt, env=self.env)
    ...
    ...     def step(self):
    ...         return {"reward": train(self.net, self.opt, self.env)}

    `save_checkpoint`, `load_checkpoint` and `reset_config` are done. Plain values that have to come back stand
    in `self.vars`. Tune's counter of iterations follows the run: after a restart it is the step of the newest
    checkpoint, whatever Tune's own record says.
    """

    _trial: Trial | None = None
    _tracked: Tracked | None = None
    _steps = 0
    _saved = -1
    """The step of the newest checkpoint that was waited for."""
    _clean = True
    """False while a step is under way, and after one that has raised."""
    _aside = ""
    """What the line of the start says beside the rest."""
    resumed: ResumeReport | None = None
    """How the trial started."""

    @property
    def vars(self) -> Variables:
        """Values that come back: `self.vars.obs = obs`."""
        return self._objects().vars

    @takes_settings(without=REFUSED)
    def start(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        trial: str = "",
        hold: int = HOLD,
        quiet: bool = False,
        **objects: object,
    ) -> None:
        """Save and restore `objects` with this trial; the last thing that `setup` does.

        `every` counts iterations. Tune's own wish for a checkpoint is followed beside it, and only of these
        checkpoints Tune is told. The other options are those of `unbroken.tune.start`.

        Raises:
            ConfigError: a setting or an object cannot be used. Nothing was opened or written.
        """
        options, objects = divided(objects)
        settings = settings_of("Trainable.start", root, options, job=self._job(trial), refused=REFUSED)
        tracked = self._objects()
        tracked.add(objects)
        self._trial = Trial(settings, tracked, self.config, hold=checked_hold(hold), quiet=quiet)

    def record(self, *, episodes: int = 0, **metrics: float) -> None:
        """Count finished episodes and keep the latest value of each metric for the next checkpoint."""
        self._objects().counters.record(episodes, metrics)

    def train(self) -> Any:
        """Run one iteration, and save after it if it is time. Tune calls this.

        Raises:
            ConfigError: `setup` has not called `start`.
        """
        trial = self._opened(None)
        self._clean = False
        result = super().train()  # type: ignore[no-untyped-call]
        self._clean = True
        self._steps += 1
        self._objects().counters.save_if_due(trial.engine, self._steps)
        return result

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save the state, durably, and write the pointer that Tune keeps.

        Waits for the disk: Tune means this state, and may give it to another trial at once.

        Raises:
            ConfigError: `setup` has not called `start`.
        """
        trial = self._opened(None)
        self._save(trial, "asked for by Tune")
        trial.pointers.write(checkpoint_dir, trial.pointers.newest())

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Go on from what Tune gives this trial: see `trial`.

        Raises:
            ConfigError: it is no checkpoint of this package.
        """
        if not isinstance(checkpoint, (str, os.PathLike)):
            raise ConfigError(
                "Tune's checkpoint is a dict, and none of this package's.", hint="Start the trial without it."
            )
        pointer = read_pointer(checkpoint)
        if self._trial is not None and self._trial.is_open:
            self._build_anew(self.config)
        self._opened(pointer)

    def restore(self, checkpoint_path: Any) -> None:
        """Restore; where Tune has deleted that pointer (`num_to_keep`), by the nearest one of the same trial."""
        found, self._aside = standing(checkpoint_path)
        super().restore(found)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Build the training of another trial in this process."""
        self._build_anew(new_config)
        return True

    def cleanup(self) -> None:
        """Save what no checkpoint holds yet, and give the run back."""
        self._give_back()

    def _job(self, name: str) -> str:
        storage: Any = self._storage
        if storage is None or self._trial_info is None:
            raise ConfigError(
                "There is no trial here: Tune has not made this trainable.",
                hint="Give the class to a Tuner; outside of Tune use unbroken.Run.",
            )
        return job_name(storage.experiment_dir_name, name or self.trial_id)

    def _objects(self) -> Tracked:
        if self._tracked is None:
            self._tracked = Tracked()
        return self._tracked

    def _opened(self, pointer: Pointer | None) -> Trial:
        trial = self._trial
        if trial is None:
            raise ConfigError(
                "setup() has not called self.start().", hint="Make it the last thing that setup() does."
            )
        if not trial.is_open:
            self.resumed = trial.open(pointer, aside=self._aside)
            self._aside = ""
            self._steps = self._iteration = self.resumed.step
            self._saved, self._clean = self.resumed.step, True
        return trial

    def _save(self, trial: Trial, reason: str) -> None:
        engine = trial.engine
        engine.wait()
        if self._saved == self._steps or trial.pointers.newest().step == self._steps:
            return  # nothing has been trained since
        counters = self._objects().counters
        engine.save(
            self._steps, reason=reason, episodes=counters.episodes, metrics=counters.metrics, wait=True
        )
        self._saved = self._steps

    def _give_back(self) -> None:
        trial, self._trial = self._trial, None
        if trial is None or not trial.is_open:
            return
        try:
            if self._clean:
                self._save(trial, "Tune ends or pauses the trial")
        finally:
            trial.close()

    def _build_anew(self, config: Mapping[str, Any]) -> None:
        self._give_back()
        self._tracked = None
        self.setup(copy.deepcopy(dict(config)))
