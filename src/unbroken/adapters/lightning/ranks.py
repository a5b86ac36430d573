"""A training in several processes: what they are to each other, and how all of them come to one end.

Lightning's own reaction to SIGTERM is a collective inside of a signal handler: it comes between whatever
collectives the ranks are in, in another place on each. Here a signal is only noted; at the next clean point all
ranks hear of it together, with the question whether to save, and Lightning ends every one of them there.

Not promised: shards (FSDP, DeepSpeed), and processes that are born anew in each `fit` (`ddp_spawn`).
"""

from __future__ import annotations

import atexit
import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy

from unbroken.capture.hooks import Hook
from unbroken.capture.process_group import initialized, other_low_bits, together
from unbroken.capture.replicas import own_components
from unbroken.engine.world import World
from unbroken.errors import ConfigError, StateMismatch
from unbroken.state.nodes import Dict, Value

WEIGHTS = "policy_weights"
REPLICATED = frozenset({WEIGHTS, "target_weights", "optimizer_states"})
"""What DDP keeps the same on every rank. Schedulers may follow what a rank has logged for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """How the ranks of a training meet; `replicated` None: what DDP keeps the same of this module."""

    replicated: Collection[str] | None = None
    sync_timeout: float = 300.0
    start_timeout: float = 600.0

    def __post_init__(self) -> None:
        World(  # which refuses what it cannot use, already where the callback is made
            rank=0,
            size=1,
            replicated=REPLICATED if self.replicated is None else self.replicated,
            sync_timeout=self.sync_timeout,
            start_timeout=self.start_timeout,
        )

    def world(self, trainer: Trainer, agree: Callable[[bool], bool] | None) -> World:
        """Return the world as this process sees it."""
        found = same_on_every_rank(trainer) if self.replicated is None else self.replicated
        return World(
            rank=trainer.global_rank,
            size=trainer.world_size,
            replicated=found,
            sync_timeout=self.sync_timeout,
            start_timeout=self.start_timeout,
            agree=agree,
        )


def check_ranks(trainer: Trainer) -> None:
    """Refuse a training in several processes that could not be saved, or not be continued.

    Raises:
        ConfigError: its strategy is another one than DDP, or one with a state of its own.
    """
    if trainer.world_size == 1:
        return
    strategy: Any = trainer.strategy
    if not isinstance(strategy, DDPStrategy) or isinstance(strategy, DeepSpeedStrategy):
        raise ConfigError(
            f"This training runs in {trainer.world_size} processes under {type(strategy).__name__}; of several"
            " processes only those under DDP can be saved.",
            hint='Use Trainer(strategy="ddp"), or devices=1.',
        )
    if strategy._start_method != "popen":
        raise ConfigError(
            "This strategy starts new processes in every fit, which do not know what the script has done before.",
            hint='Use Trainer(strategy="ddp"), which runs the script in every process.',
        )
    if strategy._ddp_comm_state is not None:
        raise ConfigError(
            f"{type(strategy._ddp_comm_state).__name__} remembers what it has left out of the gradients, which"
            " cannot be saved.",
            hint="Leave ddp_comm_state out.",
        )


def check_same_ranks(position: Value, trainer: Trainer) -> None:
    """Refuse the checkpoint of another number of processes: how far a loop and its data are, each has for
    itself, so that what is left of the epoch could be shared out neither among fewer nor among more.

    Raises:
        StateMismatch: it is one.
    """
    place = position.v if isinstance(position, Dict) and position.v is not None else {}
    before = place.get("ranks", 1)
    if not place or before != trainer.world_size:
        # A process that was not there when the checkpoint was taken finds no position of its own in it.
        former = str(before) if place else "fewer"
        raise StateMismatch(
            f"The number of processes was {former} and is {trainer.world_size}; nothing was touched.",
            hint="Start as many as before. `unbroken export` writes the weights for a run of its own.",
        )


def same_on_every_rank(trainer: Trainer) -> frozenset[str]:
    """Return the components that DDP keeps byte for byte the same."""
    from unbroken.adapters.lightning.policy import keeps_gradients

    modules = trainer.lightning_module.modules()
    return REPLICATED - own_components(modules, gathers=keeps_gradients(trainer))


def low_bits(trainer: Trainer) -> str:
    """Return why this training makes other low bits after a restart; empty if it does not."""
    reason = other_low_bits(trainer.strategy.model)
    return f'{reason}, here strategy="ddp_find_unused_parameters_true"' if reason else ""


class Signal:
    """SIGTERM on its way to all ranks. `install` comes before Lightning takes the signal, at the start of a fit."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer: Any = trainer
        self._came = False
        self.known = False
        """Whether every rank knows that one of them was told to end."""
        self._ask: Callable[[list[bool]], list[bool]] | None = None
        self._hook: Hook | None = None
        if trainer.world_size > 1:
            connector = self._trainer._signal_connector
            self._hook = Hook(connector, "_sigterm_notifier_fn", self._note, keeper=self)

    def install(self) -> None:
        if self._hook is not None:
            self._hook.install()

    def remove(self) -> None:
        """Give the signal back to Lightning. May be called twice."""
        if self._hook is not None:
            self._hook.remove()

    def stay(self) -> None:
        """Let further signals change nothing while this process ends: Lightning puts back what was there before the
        fit, by which the next one would kill it."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            self._trainer._signal_connector._original_handlers.pop(number, None)
        atexit.register(_ignore, signal.SIGTERM)

    def meet(self, timeout: float) -> Callable[[bool], bool] | None:
        """Return what every rank calls at each clean point, with its wish for a save: yes where any rank says so.
        None for a process that is alone. All ranks call `meet` at the same place."""
        dist = initialized()
        if self._hook is None or dist is None:
            return None
        self._ask = together(dist, timeout=timeout)
        return self._agree

    def end_all(self) -> None:
        """Let Lightning end this process at the top of the batch, if all know of a SIGTERM."""
        if self.known:
            self._trainer._signal_connector.received_sigterm = True

    def _agree(self, wish: bool) -> bool:  # noqa: FBT001 - the contract of World.agree
        assert self._ask is not None
        save, known = self._ask([wish, self._came])
        self.known = self.known or known
        return save

    def _note(self, signum: Any, frame: object) -> None:
        launcher = self._trainer.strategy.launcher
        if not self._came and launcher is not None:
            launcher.kill(signum)
        self._came = True


def _ignore(number: int) -> None:
    """While Python takes itself apart, no handler of its is left."""
    if signal.getsignal(number) is not signal.SIG_DFL:
        signal.signal(number, signal.SIG_IGN)
