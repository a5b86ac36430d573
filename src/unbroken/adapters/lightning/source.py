"""One `fit` of a Lightning trainer as the engine sees it: what is captured, and how it is laid over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback

from unbroken.adapters.lightning.callbacks import callbacks_of, with_state
from unbroken.adapters.lightning.fit_loop import Place
from unbroken.adapters.lightning.loaders import LOADERS
from unbroken.adapters.lightning.loggers import DIRECTORIES, Loggers
from unbroken.adapters.lightning.policy import CALLBACKS, training_policy
from unbroken.adapters.lightning.ranks import WEIGHTS, check_same_ranks, low_bits
from unbroken.capture.frames import FrameCodec
from unbroken.capture.generators import GlobalGenerators
from unbroken.capture.loaders import out_of_reach
from unbroken.capture.members import plan_with_members, saved_root
from unbroken.capture.rings import is_buffer
from unbroken.capture.source import GraftSource
from unbroken.engine.changes import Change, Verdict, usual_verdict
from unbroken.engine.wording import Words
from unbroken.state.graft import Graft
from unbroken.state.lookup import Kind, lookup
from unbroken.state.nodes import class_name
from unbroken.state.pickles import Trust
from unbroken.state.places import last_key
from unbroken.state.policy import Policy
from unbroken.state.snapshot import Note, Promise, Snapshot
from unbroken.types import Fidelity

SETTINGS = frozenset(
    {
        "max_epochs", "min_epochs", "max_steps", "min_steps", "max_batches", "_limits", "limits", "length",
        "batch_size", "drop_last", "num_workers", "accumulate_grad_batches",
    }
)  # fmt: skip
"""What a person sets, among all that the loops, the trainer and the data loaders hold."""


class FitSource(GraftSource):
    """Source over a module and everything else that one `fit` changes."""

    def __init__(
        self, trainer: Trainer, ours: Callback, promises: Mapping[str, Promise], loggers: Loggers
    ) -> None:
        self.position: dict[str, Any] = {"place": Place.START.value, "ranks": trainer.world_size}
        """Where the loop stands; after a restore, where it stood."""
        self._trainer = trainer
        self._loggers = loggers
        loop: Any = trainer.fit_loop
        self._frames = FrameCodec()
        policy = training_policy(trainer, self._frames)
        policy = policy.merged(Policy(components=dict.fromkeys(_buffers(trainer, policy), "replay_buffer")))
        self._live: dict[str, object] = {
            "module": trainer.lightning_module,
            "optimizers": list(trainer.optimizers),
            "schedulers": [config.scheduler for config in trainer.lr_scheduler_configs],
            "precision": trainer.precision_plugin,
            CALLBACKS: with_state(trainer, ours),
            "loop": loop,
            "passes": None,
            "metrics": trainer._logger_connector,
            "trainer": trainer,
            "position": self.position,
            "generators": GlobalGenerators(),
        }
        data: Any = getattr(trainer, "datamodule", None)
        if data is not None:
            self._live["datamodule"] = data
        self.stand()
        known = dict(promises)
        lost = out_of_reach(self._iterators())
        if lost:
            known[LOADERS] = Promise(Fidelity.APPROXIMATE, "; ".join(lost))
        other = low_bits(trainer)
        if other:
            known[WEIGHTS] = Promise(Fidelity.APPROXIMATE, other)
        super().__init__(self._live, policy, facts=self._known, promises=known)

    def capture(self) -> Snapshot:
        """Return the state, as `GraftSource` does."""
        self.stand()
        try:
            return super().capture()
        finally:
            self._frames.begun()

    def _is_news(self, note: Note, snapshot: Snapshot) -> bool:
        # At the end no data follow of which a pass that has ended could miss any.
        at_end = self.position["place"] == Place.END.value and note.kind == "approximate"
        return not at_end and super()._is_news(note, snapshot)

    def skeleton(self) -> Snapshot:
        """Return the state without contents, as `GraftSource` does."""
        self.stand()
        try:
            return super().skeleton()
        finally:
            self._frames.begun()

    def plan(self, saved: Snapshot, *, keep: Sequence[str] = (), trusted: Trust = False) -> Graft:
        """Lay a saved state over the training. A callback that only one side has is left out, and said."""
        check_same_ranks(saved_root(saved, "position"), self._trainer)
        self.stand()
        return plan_with_members(saved, self.roots, self.policy, root=CALLBACKS, keep=keep, trusted=trusted)

    def judge(self, change: Change) -> Verdict:
        """Say what becomes of a change. Of loops and loaders only what a person sets is a setting."""
        keys = change.place.split("/")
        if keys[0] in ("position", "metrics", "passes", "generators"):
            return Verdict.SAVED
        if keys[0] == CALLBACKS and (change.birth is None or change.now is None):
            return Verdict.FRESH
        if keys[0] in ("loop", "trainer", "validation") and change.kind == "value":
            return usual_verdict(change) if keys[-1] in SETTINGS else Verdict.SAVED
        return super().judge(change)

    def reword(self, place: str, words: Words) -> Words:
        """Say it in the words of a Lightning script: its settings by the names of their arguments."""
        first, _, last = place.partition("/")
        if place.startswith("position/loggers/"):
            return replace(words, subject=last_key(place))
        name = last.rpartition("/")[2]
        if first in ("loop", "trainer", "validation") and name in SETTINGS:
            return replace(words, subject=name)
        return words

    def stand(self) -> None:
        """Hold on to the passes that the loaders are in. To be called at each batch."""
        loop: Any = self._trainer.fit_loop
        self.position["loggers"] = self._loggers  # which a checkpoint of an earlier version does not tell of
        # Each epoch begins a new pass, and may load its data anew.
        self._live["passes"] = loop._data_fetcher.combined_loader._iterator
        validation = loop.epoch_loop.val_loop._combined_loader
        if validation is not None:
            self._live["validation"] = validation

    def _iterators(self) -> list[Any]:
        return list(getattr(self._live["passes"], "iterators", ()))

    def _known(self) -> dict[str, Any]:
        trainer = self._trainer
        known: dict[str, Any] = {
            "module": type(trainer.lightning_module).__name__,
            "epoch": trainer.current_epoch,
            "max_steps": trainer.max_steps,
            "max_epochs": trainer.max_epochs,
        }
        directories = self._loggers.directories()
        if directories:
            known[DIRECTORIES] = directories
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        if groups:
            known["learning_rate"] = float(groups[0]["lr"])
        for name, value in parts(trainer):
            if is_buffer(name, value) and isinstance(value, Sized) and not isinstance(value, (dict, set)):
                known["buffer_rows"] = len(value)
        return known


def parts(trainer: Trainer) -> Iterator[tuple[str, object]]:
    """Yield (name, value) for what a person keeps in the module, the data, and the callbacks of a training."""
    loaders = [*_flattened(trainer.fit_loop), *_flattened(trainer.fit_loop.epoch_loop.val_loop)]
    holders: list[tuple[str, object]] = [("module", trainer.lightning_module)]
    holders += [("datamodule", getattr(trainer, "datamodule", None))]
    holders += [("dataset", getattr(loader, "dataset", None)) for loader in loaders]
    holders += [(type(callback).__name__, callback) for callback in callbacks_of(trainer)]
    for of, holder in holders:
        for name, value in list(getattr(holder, "__dict__", {}).items()):
            yield f"{of}.{name}", value
            if isinstance(value, (list, tuple)):
                yield from ((f"{of}.{name}[{i}]", item) for i, item in enumerate(value[:_MOST]))
            elif isinstance(value, dict):
                yield from ((f"{of}.{name}[{key!r}]", item) for key, item in list(value.items())[:_MOST])


def _flattened(loop: Any) -> list[Any]:
    return [] if loop._combined_loader is None else list(loop._combined_loader.flattened)


_MOST = 1024
"""Members of a container that are looked at: environments are not kept by the thousand."""


def _buffers(trainer: Trainer, policy: Policy) -> Iterator[str]:
    """Yield the classes of replay buffers that are plain objects."""
    memory = lookup(policy)
    for name, value in parts(trainer):
        facts = memory.facts(type(value))
        plain = facts.kind is Kind.OBJECT and not facts.structural and not facts.component
        if plain and is_buffer(name.rpartition(".")[2], value):
            yield class_name(type(value))
