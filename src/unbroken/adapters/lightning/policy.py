"""How to walk the objects of Lightning: what belongs to the process, what opens a component, what is kept.

The trainer itself is met at many places and holds the whole machinery of a process; of it only the few
attributes are walked that change while it trains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch import Trainer

from unbroken.adapters.lightning import callbacks, files, fit_loop, loaders, loggers, results
from unbroken.capture.frames import FrameCodec, frame_policy
from unbroken.capture.source import policy_of_loaded
from unbroken.state.nodes import Value
from unbroken.state.policy import Captor, Policy

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

PYTORCH = "lightning.pytorch"
LOADER = "torch.utils.data.dataloader"
CALLBACKS = "callbacks"
TRAINER = frozenset({"should_stop", "accumulate_grad_batches"})


class TrainerCaptor:
    """Captor of the trainer."""

    def attributes(self, obj: Any) -> frozenset[str]:
        return TRAINER

    def capture(self, obj: Any, walk: Walk) -> dict[str, Value]:
        return {}

    def plan(self, extra: dict[str, Value], obj: Any, graft: Graft) -> None:
        """Nothing but the attributes."""


_captor = TrainerCaptor()


def trainer_rule(obj: object) -> Captor | None:
    """Return the captor of a trainer, None for anything else."""
    return _captor if isinstance(obj, Trainer) else None


POLICY = Policy(
    skip={
        f"{PYTORCH}.core.module:LightningModule": frozenset(
            {
                "_current_fx_name",  # the hook that runs, which of a SIGTERM's save is `on_exception`
                "_trainer",
                "_fabric",
                "_fabric_optimizers",
                "_compiler_ctx",
                "_device_mesh",
                "_metric_attributes",
            }
        ),
        f"{PYTORCH}.core.datamodule:LightningDataModule": frozenset({"trainer"}),
        f"{PYTORCH}.loops.loop:_Loop": fit_loop.HOOKS | {"trainer", "_data_source", "_warning_cache"},
        # Each validation begins its loader anew; what lasts from one to the next is a root by itself.
        f"{PYTORCH}.loops.evaluation_loop:_EvaluationLoop": frozenset({"_combined_loader", "_data_fetcher"}),
        f"{PYTORCH}.loops.fetchers:_DataFetcher": frozenset({"_start_profiler", "_stop_profiler"}),
        f"{PYTORCH}.loops.fetchers:_DataLoaderIterDataFetcher": frozenset({"iterator_wrapper"}),
        f"{PYTORCH}.utilities.combined_loader:CombinedLoader": frozenset({"_iterator", "_spec"}),
        f"{PYTORCH}.trainer.connectors.logger_connector.logger_connector:_LoggerConnector": frozenset(
            {"trainer"}
        ),
        f"{PYTORCH}.callbacks.model_checkpoint:ModelCheckpoint": files.OWN,
        f"{PYTORCH}.callbacks.timer:Timer": callbacks.CLOCK,
    },
    external=frozenset(
        {
            f"{PYTORCH}.loggers",
            f"{PYTORCH}.profilers",
            "lightning.fabric.loggers",
            "fsspec",
            "mlflow",
            "multiprocessing",
            "rich",
            "tensorboard",
            "torch.utils.tensorboard",
            "tqdm",
            "wandb",
        }
    ),
    external_classes=frozenset(
        {
            f"{PYTORCH}.callbacks.progress.progress_bar:ProgressBar",
            f"{PYTORCH}.strategies.strategy:Strategy",
            "unbroken.adapters.lightning.callback:CheckpointCallback",
        }
    ),
    structural=frozenset(
        {
            f"{PYTORCH}.callbacks.callback:Callback",
            f"{PYTORCH}.core.datamodule:LightningDataModule",
            f"{PYTORCH}.loops.loop:_Loop",
            f"{PYTORCH}.loops.fetchers:_DataFetcher",
            f"{PYTORCH}.trainer.trainer:Trainer",
            f"{PYTORCH}.utilities.combined_loader:CombinedLoader",
            f"{PYTORCH}.utilities.combined_loader:_ModeIterator",
            "unbroken.adapters.lightning.loggers:Loggers",
            f"{LOADER}:DataLoader",
            f"{LOADER}:_BaseDataLoaderIter",
        }
    ),
    trusted=frozenset({"lightning", "torchmetrics"}),
    components={
        f"{PYTORCH}.callbacks.callback:Callback": CALLBACKS,
        f"{PYTORCH}.loops.fetchers:_DataFetcher": loaders.LOADERS,
        f"{PYTORCH}.utilities.combined_loader:CombinedLoader": loaders.LOADERS,
        f"{PYTORCH}.utilities.combined_loader:_ModeIterator": loaders.LOADERS,
    },
    captors=(trainer_rule, files.files_rule, callbacks.timer_rule, loggers.loggers_rule),
)


MODULE = "module_state"
OF_RANKS = Policy(
    components={f"{PYTORCH}.core.module:LightningModule": MODULE, "torchmetrics.metric:Metric": MODULE}
)
"""Of several processes each has for itself what a person keeps in the module (environments, counters, metrics),
while its networks are the same: they are taken apart."""


def training_policy(trainer: Trainer, frames: FrameCodec) -> Policy:
    """Return the rules for one `fit` of this trainer, with those of every framework that is imported."""
    own = Policy(codecs={results.CLASS: results.ResultsCodec(trainer.strategy.reduce)})
    of_ranks = [OF_RANKS] if trainer.world_size > 1 else []
    return policy_of_loaded(POLICY, own, frame_policy(frames), *of_ranks, *_gradients(trainer))


def _gradients(trainer: Trainer) -> list[Policy]:
    from unbroken.capture.torch import WITH_GRADIENTS

    return [WITH_GRADIENTS] if keeps_gradients(trainer) else []


def keeps_gradients(trainer: Trainer) -> bool:
    """Whether gradients last from one batch to the next: where they are gathered, or where the module does as
    it likes. Elsewhere they are made anew for each batch, and a checkpoint need not carry them."""
    from lightning.pytorch.callbacks import GradientAccumulationScheduler

    gathers = any(
        isinstance(callback, GradientAccumulationScheduler) for callback in callbacks.callbacks_of(trainer)
    )
    manual = not trainer.lightning_module.automatic_optimization
    return manual or gathers or trainer.accumulate_grad_batches > 1
