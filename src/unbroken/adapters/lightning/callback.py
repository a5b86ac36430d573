"""The callback that a person gives to the trainer. All work is done by the session behind it."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.exceptions import SIGTERMException

from unbroken.adapters.lightning.ranks import Meeting, check_ranks
from unbroken.adapters.lightning.session import Session
from unbroken.engine.options import Options, settings_of, takes_settings
from unbroken.engine.report import ResumeReport
from unbroken.engine.saying import say
from unbroken.engine.schedule import Every
from unbroken.engine.world import SYNC_SECONDS
from unbroken.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Unpack


class CheckpointCallback(Callback):
    """Saves a training so that the same script, started again after a kill, ends as if never killed.

    `trainer.fit(module)` is called as on the first day, without `ckpt_path`. Everything comes back: the module
    with all its attributes (environments, buffers, counters, generators), optimizers, schedulers, the place in
    the epoch and in the data, what was logged so far, other callbacks, and every generator of the process.
    A step is `trainer.global_step`, which counts steps of optimizers. Saves are made between two batches,
    after the validation that belongs to the first. The callback may stand anywhere among the others.

    Args:
        root: the directory of the runs, or the URL of a bucket; the variable UNBROKEN_ROOT moves them elsewhere.
        job: the name of the run, below `root`.
        every: a number of steps, or `Every(steps=, seconds=, max_loss=, max_overhead=)`, the first that is due.
            Left out, `Every(max_loss="5min", max_overhead=0.02)`.
        keep_last: so many of the newest checkpoints stay; older ones are removed.
        best: the checkpoint that is best by a logged metric stays too, for example `Best("val_loss", mode="min")`;
            of several processes by what the first has logged.
        keep_first: the checkpoint of the start stays too.
        resume: "auto" goes on where there is a checkpoint; "must" demands one; "never" starts anew;
            "best" takes the best one; a number takes the checkpoint of that step.
        worst_tier: how far a start may fall if checkpoints are damaged.
        strict: refuse a script whose settings were changed, instead of using and reporting the new ones.
        allow_changed: names of what may differ although the run is not exact then.
        trust: load pickled parts of a checkpoint without a valid signature. They can run any code.
        document_format: "json", which people can read, or "msgpack", which is smaller.
        staging: bytes of memory that the copy of a snapshot may take; left out, half of what is free.
        writer: "thread", or "process": a process of its own, which a kill of the training alone does not stop.
        replicated: components that are the same in all processes of a `strategy="ddp"`: they are saved once, and
            compared at each save. Left out, optimizers, and weights unless the module has buffers or gathers
            gradients; all else is saved for each process.
        sync_timeout: seconds that one process may keep the others waiting in a save.
        start_timeout: seconds until all processes are there, and have read what they go on from.

    Every other setting of `unbroken.Settings` is taken under its name, too; `help` shows them with their defaults.

    Raises ConfigError where a setting cannot be used; `fit` raises what resuming or saving meets.

    >>> from unbroken.lightning import CheckpointCallback
    >>> trainer = lightning.Trainer(callbacks=[CheckpointCallback("runs", every=100)])  # doctest: +SKIP
    >>> trainer.fit(module)  # doctest: +SKIP
    """

    @takes_settings()
    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        job: str = "",
        replicated: Collection[str] | None = None,
        start_timeout: float = 600.0,
        **options: Unpack[Options],
    ) -> None:
        every = options.get("every")
        if isinstance(every, Every) and every.episodes is not None:
            raise ConfigError(
                "Lightning counts no episodes, so none can say when to save.",
                hint="Use Every(steps=…) or Every(seconds=…).",
            )
        self._session: Session | None = None
        self._settings = settings_of("CheckpointCallback", root, options, job=job)
        seconds = self._settings.overridden(os.environ).sync_timeout or SYNC_SECONDS
        self._meeting = Meeting(replicated=replicated, sync_timeout=seconds, start_timeout=start_timeout)

    @property
    def report(self) -> ResumeReport | None:
        """How the newest training started; None before it did."""
        return self._session.report if self._session is not None else None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Take the trainer, before anything is fetched. Lightning calls this and all hooks below.

        Raises:
            ConfigError: the trainer has two of these callbacks.
        """
        self._session = None
        if stage != "fit":
            return
        if getattr(trainer, "fast_dev_run", False):
            if trainer.is_global_zero:
                say("unbroken: a fast_dev_run is neither saved nor resumed")
            return
        others = [
            other for other in getattr(trainer, "callbacks", ()) if isinstance(other, CheckpointCallback)
        ]
        if len(others) > 1:
            raise ConfigError(
                f"The trainer has {len(others)} of unbroken's CheckpointCallbacks, and one training is one run.",
                hint="Give it one; `unbroken copy` puts its checkpoints in a second place.",
            )
        check_ranks(trainer)
        self._session = Session(trainer, self, self._settings, self._meeting)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prepare what has to be there before any data is fetched."""
        if self._session is not None:
            # Before any data is fetched: the first episodes begin under the eyes of what records them.
            self._session.prepare()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the run; what it holds is restored where the first epoch begins."""
        if self._session is not None:
            self._session.open()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Let go of the run; after SIGTERM, save first."""
        if self._session is None:
            return
        if isinstance(exception, SIGTERMException):
            self._session.terminated(exception)
        else:
            self._session.abandoned(exception)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let go of the run, if training has ended otherwise."""
        if stage == "fit" and self._session is not None:
            self._session.abandoned(None)

    def state_dict(self) -> dict[str, Any]:
        """Nothing of ours stands in Lightning's own checkpoint files."""
        return {}
