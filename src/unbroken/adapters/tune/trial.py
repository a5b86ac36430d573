"""One trial as a run of its own: which one it is, and from where it goes on.

- Tune gives no checkpoint, or one of this trial: the run goes on from *its own newest* checkpoint. Tune's
  record may be older than that (a killed driver writes it every ten seconds at most), never newer.
- Tune gives a checkpoint of another trial (an exploit of population based training): this run goes on as
  a clone of it. That this was done stands in every checkpoint that follows, beside the clones before it, so a
  trial that is started again with the same checkpoint and the same configuration goes on from where it has come to.

Not promised: anything for two trials that share a name; each is one writer.
"""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from ray import tune

from unbroken.adapters.trackers.places import IN_USE
from unbroken.adapters.tune.configuration import digest_of_config
from unbroken.adapters.tune.pointers import Pointers
from unbroken.capture.tracked import Tracked
from unbroken.engine.clone import Origin
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.report import ResumeReport
from unbroken.engine.saying import say
from unbroken.engine.settings import Settings
from unbroken.engine.trials import PATIENCE, patiently, settings_of_trial
from unbroken.errors import ConfigError, CorruptObject
from unbroken.format.pointer import Pointer
from unbroken.repo.repository import Repository
from unbroken.types import Digest

LINEAGE = "lineage"
_REMEMBERED = 8
"""How many clones before the newest one are told from a wish that is new. Tune's record is behind by seconds."""


def job_of_trial(name: str = "") -> str:
    """Return the name of the run of the trial that a function is running in, the same at every start.

    `name` stands in the place of Tune's id.

    Raises:
        ConfigError: this is no trial.
    """
    context: Any = tune.get_context()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the error below says the same
        experiment, trial = context.get_experiment_name(), context.get_trial_id()
    if not trial:
        raise ConfigError(
            "There is no trial here: this is called by a trainable, which Tune runs.",
            hint="Outside of Tune use unbroken.Run.",
        )
    return job_name(str(experiment or "experiment"), name or str(trial))


def job_name(experiment: str, trial: str) -> str:
    """Return the name of a trial's run, `<experiment>-<trial id>`, as runs can be named.

    >>> job_name("my experiment/1", "a1b2c_00000")
    'my-experiment-1-a1b2c_00000'
    """
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", experiment).lstrip("._-") or "experiment"
    return f"{word[: 126 - len(trial)]}-{trial}"


class Trial:
    """The engine of one trial, from its start to its end.

    `config` is what Tune has chosen for it: a clone is told from its repetition by it.
    """

    def __init__(
        self,
        settings: Settings,
        tracked: Tracked,
        config: Mapping[str, Any],
        *,
        hold: int,
        patience: float = PATIENCE,
        quiet: bool = False,
    ) -> None:
        self.settings = settings_of_trial(settings, os.environ)
        self.tracked = tracked
        self.pointers = Pointers(os.fspath(self.settings.root), self.settings.job, hold=hold)
        self._config = digest_of_config(config)
        self._patience = patience
        self._quiet = quiet
        self._engine: CheckpointEngine | None = None

    @property
    def engine(self) -> CheckpointEngine:
        if self._engine is None:
            raise ConfigError("The trial has not begun, or is over.", hint="Iterate over run.steps() first.")
        return self._engine

    @property
    def is_open(self) -> bool:
        return self._engine is not None

    def open(self, pointer: Pointer | None, *, aside: str = "", total: int = 0) -> ResumeReport:
        """Bring the tracked objects to where the trial goes on, and say so. `pointer` is what Tune gives it
        to load, `aside` what the line says of that, `total` the steps that it is to have, if that is known.

        Raises as `CheckpointEngine.resume` does.
        """
        self._check_same_run(pointer)
        lineage = self._lineage()
        origin = self._origin(pointer, lineage)
        if origin is not None and pointer is not None:
            lineage = self._wish(pointer, after=lineage)
        if lineage:
            self.tracked.notes[LINEAGE] = lineage
        source = self.tracked.source()
        source.hyperparameters_win = origin is not None
        # What is asked for strictly is what a person has changed, and not what a scheduler has chosen.
        settings = self.settings if origin is None else self.settings.changed(strict=False)
        engine = CheckpointEngine(source, settings, finders=IN_USE, environment={})
        report = patiently(partial(engine.resume, origin=origin), self._patience)
        self._engine = engine
        report = report if self.tracked.counters.stopped else report.towards(total)
        asides = [aside] if aside else []
        report = replace(report, also=(*asides, *report.also, *_asides(report, pointer, self.settings.job)))
        if not self._quiet:
            say(report.line if origin is not None else report.text)
        return report

    def close(self) -> None:
        """Wait for the last save and give the run back."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _check_same_run(self, pointer: Pointer | None) -> None:
        """Refuse to begin anew where Tune says that this trial has come far, in a run that is not there."""
        if pointer is None or pointer.job != self.settings.job or self.settings.resume == "never":
            return
        try:
            held = bool(Repository.open(self.settings.root, self.settings.job).commits())
        except ConfigError:
            held = False
        if not held:
            raise ConfigError(
                f"Tune's record is at step {pointer.step:,} of the trial {pointer.job!r} in {pointer.root}, and there"
                f" is no checkpoint in {self.settings.where}.",
                hint="Give the former root, or begin another experiment for a training from the start.",
            )

    def _origin(self, pointer: Pointer | None, lineage: Mapping[str, object]) -> Origin | None:
        if pointer is None or pointer.job == self.settings.job:
            return None
        if _name(self._wish(pointer)) in _made(lineage):
            return None  # and more has been trained since
        return Origin(
            root=pointer.root, job=pointer.job, sequence=pointer.sequence, digest=Digest(pointer.digest)
        )

    def _wish(
        self, pointer: Pointer, *, after: Mapping[str, object] = MappingProxyType({})
    ) -> dict[str, object]:
        return {
            "job": pointer.job,
            "sequence": int(pointer.sequence),
            "digest": str(pointer.digest),
            "config": self._config,
            "earlier": _made(after)[:_REMEMBERED],
        }

    def _lineage(self) -> dict[str, object]:
        """Return what the newest checkpoint of this trial says of its parent; nothing if it has none."""
        try:
            repository = Repository.open(self.settings.root, self.settings.job)
        except ConfigError:
            return {}
        for commit in repository.commits():
            try:
                return dict(repository.meta(commit).counters.get(LINEAGE) or {})
            except CorruptObject:
                continue  # the resume finds it damaged as well, and takes the next one
        return {}


def _name(lineage: Mapping[str, object]) -> str:
    """Return what tells one clone from another: the parent's checkpoint, and the configuration."""
    told = "\n".join(str(lineage.get(part)) for part in ("job", "sequence", "digest", "config"))
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _made(lineage: Mapping[str, object]) -> list[str]:
    """Return the clones that this trial was, from the newest back."""
    earlier = lineage.get("earlier")
    return [_name(lineage), *(earlier if isinstance(earlier, list) else ())] if lineage else []


def _asides(report: ResumeReport, pointer: Pointer | None, job: str) -> tuple[str, ...]:
    """Return what only Tune's user has to be told, as parts of the line."""
    if report.origin:
        return (*report.reasons[:-1], *_short(report.changes))
    if pointer is not None and pointer.job == job and report.restored and pointer.step != report.step:
        return (f"Tune's record is of step {pointer.step:,}",)
    if pointer is None and report.restored and report.step > 0:
        return ("Tune's record knows no checkpoint",)
    return ()


def _short(changes: tuple[str, ...]) -> tuple[str, ...]:
    """Return what has changed by its name alone: a clone's hyperparameter stands at several places."""
    found: dict[str, None] = {}
    for change in changes:
        place, _, what = change.partition(": ")
        found[f"{place.rpartition('/')[2]} {what.removesuffix(' (the new one is used)')}"] = None
    return tuple(found)
