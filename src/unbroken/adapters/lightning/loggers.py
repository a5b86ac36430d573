"""The loggers of a trainer: a training that is started again goes on in their curves, each step once.

- `TensorBoardLogger` and `CSVLogger` begin a directory `version_<n>` at each start. A training that goes on is brought
  back to that of its first start, before anything is logged, and before `ModelCheckpoint` asks where it is. In
  TensorBoard's files all is marked as void that was logged after the checkpoint; a `metrics.csv` holds again what it held.
- `WandbLogger` and `MLFlowLogger` have begun a run by then, before any callback is asked. The script says which
  (`wandb_run`, `mlflow_run`); rows that a run holds already are left out.

What is noted here is the newest step that a writer of TensorBoard was given, in whatever steps the script counts there:
what has come after it may be void, and nothing before.

What only one side has is left out, and said: a logger of which a checkpoint tells nothing begins with what its directory
holds, and of one that the script has no more the next checkpoint tells nothing.

Everything is done by attributes of the loggers and of their writers, which are gone when the training is over.

Not promised: a second `fit` that logs to the directory, or to the run, of the first: there nothing is void and nothing
left out, since its steps may begin anew. A row of step 0 that a process logged which was killed before its second
checkpoint stays beside the new one: what a script logs before it trains stands at that step, too.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger

from unbroken.adapters.lightning.csv_file import HPARAMS, CsvFile, is_local
from unbroken.adapters.lightning.logger_names import named, would_write_there
from unbroken.adapters.trackers.board import Board, is_board
from unbroken.adapters.trackers.mlflow import MlflowRun
from unbroken.adapters.trackers.once import Held, HeldByMlflow, HeldByWandb
from unbroken.capture.class_rule import ClassRule
from unbroken.capture.hooks import Hook
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.report import ResumeReport
from unbroken.engine.settings import Settings
from unbroken.engine.trackers.recorded import counters_of
from unbroken.engine.trackers.trackers import TrackerWarning
from unbroken.errors import UnbrokenError
from unbroken.state.graft import Difference
from unbroken.state.nodes import INLINE_BYTES, Bytes, Dict, List, Value, escape

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

DIRECTORIES = "log_directories"
"""Counter that says where loggers wrote to."""
FILES, NEWEST = "files", "newest"
AXIS = "trainer/global_step"
"""Under which `WandbLogger` gives the step."""
NEW = "was not logged to before, and begins here."
GONE = "was logged to, and the program has it no more."
MOST = 1000
"""Steps of checkpoints that may wait to be marked."""


class Loggers:
    """The loggers of one `fit`, where this process is the one that logs; nothing elsewhere."""

    def __init__(self, trainer: Trainer, settings: Settings, *, segment: int) -> None:
        self._trainer: Any = trainer
        self._segment = segment
        self._loggers: dict[str, Any] = {}
        self._hooks: list[Hook] = []
        self._at: dict[int, int] = {}
        """Step of a checkpoint -> the step under which Lightning logs at that point."""
        self._restored = False
        self._told = frozenset[str]()
        """Those with a step in the checkpoint."""
        self._moved: set[str] = set()
        """Those that were brought back to the directory of an earlier start."""
        self.newest: dict[str, int] = {}
        self.files: dict[str, CsvFile] = {}
        self._shared = frozenset[str]()
        """Directories that an earlier training of the script has logged to."""
        if trainer.is_global_zero and trainer.loggers:
            self._settle(settings.overridden(os.environ))

    def _settle(self, settings: Settings) -> None:
        """Go on in the directories that the checkpoints name. Nothing was logged yet."""
        known: Mapping[str, Mapping[str, Any]] = {}
        with suppress(UnbrokenError):  # the resume says so
            known = _recorded(settings, self._segment)
            if self._segment:
                before = _recorded(settings, self._segment - 1)
                self._shared = frozenset(str(told.get("path")) for told in before.values())
        self._loggers = named(self._trainer.loggers, known)
        # Judged before one is moved: loggers of one name begin directories beside each other.
        kept = {
            name: logger
            for name, logger in self._loggers.items()
            if isinstance(logger, (TensorBoardLogger, CSVLogger))
        }
        begun = {os.path.abspath(logger.log_dir) for logger in kept.values()}
        chosen = {name for name, logger in kept.items() if _is_chosen(logger, begun)}
        for name, logger in self._loggers.items():
            writer: Any = getattr(logger, "_experiment", None)
            if isinstance(logger, TensorBoardLogger) and writer is not None:
                move: Callable[[str], None] = partial(_reopen, writer)
            elif isinstance(logger, CSVLogger) and writer is not None and is_local(writer):
                self.files[name] = file = CsvFile(writer)
                move = file.move
            else:
                continue
            if name in chosen and _go_back(logger, known.get(name, {}), move):
                self._moved.add(name)

    def directories(self) -> dict[str, dict[str, Any]]:
        """Return where they write to, for a checkpoint to tell."""
        return {
            name: {"path": os.path.abspath(logger.log_dir), "version": logger.version}
            for name, logger in self._loggers.items()
            if isinstance(logger, (TensorBoardLogger, CSVLogger))
        }

    def tell(self, engine: CheckpointEngine) -> None:
        """Have checkpoints and restarts marked in those that nobody finds. To be called before the resume."""
        for name, logger in self._loggers.items():
            if isinstance(logger, TensorBoardLogger) and is_board(logger.experiment):
                writer: Any = logger.experiment
                self._watch(name, writer)
                void = self._void_of(name, os.path.abspath(logger.log_dir))
                engine.tell(Board(writer, first=self._shown_at, void=void))
            elif isinstance(logger, MLFlowLogger) and logger.run_id is not None:
                engine.tell(MlflowRun(logger.run_id, logger._tracking_uri))

    def begun(self, report: ResumeReport) -> None:
        """Log once what comes again."""
        if not report.restored:
            for name in self._moved & self.files.keys():
                self.files[name].put_back(b"")  # of checkpoints from which nobody goes on
            return
        if self._segment:
            return
        for name, logger in self._loggers.items():
            try:
                once = _once(logger)
            except Exception as error:  # noqa: BLE001 - a library may raise whatever it likes; training goes on
                warnings.warn(
                    TrackerWarning(
                        f"What {name} holds already cannot be read, so what comes again is logged twice: {error}"
                    ),
                    stacklevel=2,
                )
                continue
            if once is not None:
                once.hook.install()
                self._hooks.append(once.hook)

    def release(self) -> None:
        """Take every hook away. May be called twice."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def stand(self) -> None:
        """Note under which step Lightning logs where the training stands."""
        self._at[self._trainer.global_step] = self._logged_at()
        while len(self._at) > MOST:
            del self._at[next(iter(self._at))]

    def came_back(self, newest: Mapping[str, int], texts: Mapping[str, bytes]) -> None:
        """Take what a checkpoint tells. Part of a restore.

        Raises:
            RestoreFailed: a file cannot be written.
        """
        self._restored, self._told = True, frozenset(newest)
        self.newest.update((name, step) for name, step in newest.items() if name in self.newest)
        for name, file in self.files.items():
            # Where a later checkpoint told of the directory, all in it was logged after this one.
            if name in texts or name in self._moved:
                file.put_back(texts.get(name, b""))

    def _logged_at(self) -> int:
        return int(self._trainer.fit_loop.epoch_loop._batches_that_stepped)

    def _shown_at(self, step: int) -> int:
        """Asked for the step of the start by the training, for others by the thread that leaves marks."""
        return self._at.setdefault(step, self._logged_at()) if step not in self._at else self._at[step]

    def _void_of(self, name: str, folder: str) -> Callable[[int], int | None]:
        def void(step: int) -> int | None:
            if not self._restored or folder in self._shared:
                return None
            if name not in self._told and name not in self._moved:
                return None  # what is there was logged before, in steps that nobody knows
            return max(self._shown_at(step), self.newest.get(name, 0) + 1)

        return void

    def _watch(self, name: str, writer: Any) -> None:
        """Note the newest step of what a writer of TensorBoard is given; of our own marks, which come late, none."""
        self.newest.setdefault(name, 0)

        def add_event(event: Any, step: Any = None, walltime: Any = None) -> Any:
            ours = any(value.tag.startswith("unbroken/") for value in event.summary.value)
            if step is not None and event.WhichOneof("what") == "summary" and not ours:
                self.newest[name] = max(self.newest[name], int(step))
            return hook.original(event, step, walltime)

        hook = Hook(writer._get_file_writer(), "add_event", add_event, keeper=self)
        hook.install()
        self._hooks.append(hook)


class LoggersCaptor:
    """Captor of `Loggers`."""

    def attributes(self, obj: Any) -> frozenset[str]:
        return frozenset()

    def capture(self, obj: Loggers, walk: Walk) -> dict[str, Value]:
        if not walk.contents:
            return {}
        obj.stand()
        newest: dict[str, Value] = dict(obj.newest)
        files: dict[str, Value] = {name: _captured(file, walk) for name, file in obj.files.items()}
        return {NEWEST: Dict(v=newest), FILES: Dict(v=files)}

    def plan(self, extra: dict[str, Value], obj: Loggers, graft: Graft) -> None:
        newest = {name: value for name, value in _fields(extra.get(NEWEST)).items() if isinstance(value, int)}
        for kind, live in ((NEWEST, obj.newest), (FILES, obj.files)):
            _compare(graft, kind, _fields(extra.get(kind)), live)
        texts: dict[str, bytes] = {}
        for name, file in _fields(extra.get(FILES)).items():
            text = _fields(file).get("text")
            if isinstance(text, Bytes):
                texts[name] = graft.bytes_of(text.b, text.v).tobytes()
        graft.write(obj.came_back, newest, texts)


def _compare(graft: Graft, kind: str, saved: Mapping[str, Value], live: Mapping[str, object]) -> None:
    """Say which loggers only one side has."""
    for names, level, detail in (
        ([name for name in live if name not in saved], "fresh", NEW),
        ([name for name in saved if name not in live], "lost", GONE),
    ):
        graft.differences += [
            Difference(level, f"{graft.place}/<{kind}>/{escape(name)}", detail) for name in names
        ]


def _captured(file: CsvFile, walk: Walk) -> Value:
    try:
        file.read()
    except OSError as error:
        walk.note("not captured", f"{file.path} cannot be read: {error.strerror}")
    # Without a copy: a text that grows becomes another one.
    b = walk.adopt(np.frombuffer(file.text, np.uint8)) if len(file.text) > INLINE_BYTES else -1
    text = Bytes(b=b, v=b"" if b >= 0 else file.text)
    return Dict(v={"text": text, "columns": List(v=[*file.columns]), "digest": file.digest()})


class _Once:
    """Leaves out what stands already where a logger logs to."""

    def __init__(self, logger: Any, held: Held, *, named: Callable[[str], str] = str) -> None:
        self._logger = logger
        self._held = held
        self._named = named
        """How the logger spells a name for its library."""
        self.hook = Hook(logger, "log_metrics", self._log, keeper=self)

    def _log(self, metrics: Mapping[str, Any], step: int | None = None) -> Any:
        names = {key: self._named(name) for key, name in _prefixed(metrics, self._logger).items()}
        news = self._held.new_of({names[key]: value for key, value in metrics.items()}, step)
        kept = {key: value for key, value in metrics.items() if names[key] in news}
        return self.hook.original(kept, step) if kept or not metrics else None


def _once(logger: Any) -> _Once | None:
    """Ask what stands where a logger logs to; None for one of another kind, or one that W&B fills by itself."""
    if isinstance(logger, WandbLogger) and not logger._wandb_init.get("sync_tensorboard"):
        return _Once(logger, HeldByWandb(logger.experiment, axis=AXIS))
    if isinstance(logger, MLFlowLogger) and logger.run_id is not None:
        return _Once(logger, HeldByMlflow(logger.run_id, logger.experiment), named=_of_mlflow)
    return None


def _of_mlflow(name: str) -> str:
    return re.sub("[^a-zA-Z0-9_/. -]+", "", name)


def _prefixed(metrics: Mapping[str, Any], logger: Any) -> dict[str, str]:
    """Return the names under which a logger logs."""
    prefix = f"{logger._prefix}{logger.LOGGER_JOIN_CHAR}" if logger._prefix else ""
    return {name: prefix + name for name in metrics}


def _recorded(settings: Settings, segment: int) -> dict[str, Mapping[str, Any]]:
    told = counters_of(settings, segment=segment).get(DIRECTORIES)
    if not isinstance(told, dict):
        return {}
    held = cast("dict[str, object]", told)
    return {name: cast("dict[str, Any]", one) for name, one in held.items() if isinstance(one, dict)}


def _go_back(logger: Any, told: Mapping[str, Any], move: Callable[[str], None]) -> bool:
    """Let a logger of which the script has not said where it writes do so where it did at the first start, unless
    that is no more there. Return whether it does."""
    path, own, version = told.get("path"), os.path.abspath(logger.log_dir), logger.version
    if not isinstance(path, str) or path == own or not os.path.isdir(path):
        return False
    if not would_write_there(logger, told):  # another place, or another name
        return False
    logger._version = told.get("version")
    try:
        move(logger.log_dir)
    except OSError:
        logger._version = version
        return False
    _discard(own)
    return True


def _is_chosen(logger: Any, begun: Collection[str]) -> bool:
    """Whether nobody has said a logger's version: it is the one after all others, or the number of a job of SLURM.

    Those beyond it may only be of the other loggers of this start, which have chosen after it: `begun`.
    """
    version, root = logger.version, os.path.abspath(logger.root_dir)
    if not isinstance(version, int) or not os.path.isdir(root):
        return False
    found = (re.fullmatch(r"version_(\d+)", name) for name in os.listdir(root))
    there = {int(match[1]): os.path.join(root, match[0]) for match in found if match is not None}
    before = [other for other in there if other < version]
    beyond = [path for other, path in there.items() if other > version]
    last = version == max(before, default=-1) + 1 and all(path in begun for path in beyond)
    return last or version == SLURMEnvironment.job_id()


def _reopen(writer: Any, folder: str) -> None:
    """Let a writer of TensorBoard go on in another directory. Whoever holds it writes there, too."""
    writer.close()
    for name in ("log_dir", "logdir"):
        if name in vars(writer):
            setattr(writer, name, folder)
    writer._get_file_writer()


def _discard(folder: str) -> None:
    """Remove the directory that a logger has just begun, if nothing but what it begins with is in it."""
    with suppress(OSError):
        names = os.listdir(folder)
        others = [name for name in names if name != HPARAMS]
        if len(others) <= 1 and all(name.startswith("events.out.tfevents.") for name in others):
            for name in names:
                os.remove(os.path.join(folder, name))
            os.rmdir(folder)


def _fields(node: Value) -> dict[str, Value]:
    return node.v if isinstance(node, Dict) and node.v is not None else {}


loggers_rule = ClassRule(LoggersCaptor(), f"{__name__}:Loggers")
