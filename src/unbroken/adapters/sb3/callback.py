"""The callback that a person puts into `learn()`. All work is done by the session behind it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stable_baselines3.common.callbacks import BaseCallback

from unbroken.adapters.sb3.session import Session
from unbroken.adapters.sb3.warm_up import WarmUp
from unbroken.engine.configuration.sources import root_said
from unbroken.engine.options import Options, settings_of, takes_settings
from unbroken.engine.report import ResumeReport
from unbroken.engine.settings import Settings
from unbroken.errors import ConfigError
from unbroken.repo.roots import root_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

PREFIX = "rl_model"
"""What SB3's own callback calls a run that is given no name."""


class CheckpointCallback(BaseCallback):
    """Saves a training so that the same script, started again after a kill, ends as if never killed.

    Takes the place of the callback of the same name in `stable_baselines3.common.callbacks`, with the same
    arguments. Everything is always saved, whatever `save_replay_buffer` and `save_vecnormalize` say. The
    callback may stand anywhere among the others. It never changes a result by being there.

    Args:
        save_freq: save every so many calls of the callback (steps of the vector of environments).
        save_path: the directory of the runs, or the URL of a bucket; the variable UNBROKEN_ROOT moves them elsewhere.
        name_prefix: the name of the run, a directory below `save_path`.
        save_replay_buffer: accepted and without effect; the buffer is always saved.
        save_vecnormalize: accepted and without effect; the statistics are always saved.
        verbose: 2 or more says each save.
        every: in place of `save_freq`, an interval: `Every(steps=, seconds=, episodes=, max_loss=, max_overhead=)`,
            the first that is due. Without either, `Every(max_loss="5min", max_overhead=0.02)`.
        keep_last: so many of the newest checkpoints stay; older ones are removed.
        best: the checkpoint that is best by a metric stays too, for example `Best("eval/mean_reward")`.
        keep_first: the checkpoint of the start stays too.
        resume: "auto" goes on where there is a checkpoint; "must" demands one; "never" starts anew;
            "best" takes the best one; a number takes the checkpoint of that step.
        worst_tier: how far a start may fall if checkpoints are damaged: "newest", "older", "rebuilt",
            or "fresh", which trains from the beginning rather than stop.
        strict: refuse a script whose settings were changed, instead of using and reporting the new ones.
        allow_changed: names of what may differ although the run is not exact then.
        trust: load pickled parts of a checkpoint without a valid signature. They can run any code. Or a set of classes,
            as "module.Class", that may stand in them.
        document_format: "json", which people can read, or "msgpack", which is smaller.
        staging: bytes of memory that the copy of a snapshot may take; left out, half of what is free.
        writer: "thread", or "process": a process of its own, which a kill of the training alone does not stop.
        grace: seconds that a save that is asked for (`request_save`) may wait for a point between two steps. Before
            a `train()` or an evaluation that took longer the last time, a copy of the state is held ready.
        warm_up: a `WarmUp` that plays some episodes before the run goes on from an older checkpoint, and may reject it.
        config: all of these at once, as `Settings`; nothing else may be given then but `verbose` and `warm_up`.

    Every other setting of `unbroken.Settings` is taken under its name, too; `help` shows them with their defaults.

    Raises ConfigError where a setting cannot be used; `learn()` raises what resuming or saving meets.

    Raises:
        ConfigError: an option is of another kind or beyond its bounds, or two contradict each other.

    >>> from unbroken.sb3 import CheckpointCallback
    >>> model.learn(100_000, callback=CheckpointCallback(1000, "runs"))  # doctest: +SKIP
    """

    @takes_settings()
    def __init__(
        self,
        save_freq: int | None = None,
        save_path: str | os.PathLike[str] = "",
        name_prefix: str = PREFIX,
        save_replay_buffer: bool = False,  # noqa: FBT001, FBT002 - the arguments of SB3's own callback
        save_vecnormalize: bool = False,  # noqa: FBT001, FBT002
        verbose: int = 0,
        *,
        config: Settings | None = None,
        warm_up: WarmUp | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(verbose)
        if config is not None:
            own = {name: value for name, value in locals().items() if name in _OWN}
            _check_alone({**own, **options})
        if save_freq is not None and "every" in options:
            raise ConfigError("save_freq and every both say when to save.", hint="Give one of them.")
        _check_calls(save_freq)
        self.save_freq = save_freq
        self._warm_up = _checked(warm_up)
        self._session: Session | None = None
        if config is None and (save_path or root_said(os.environ) is None):
            root_of(save_path, name="save_path")
        self._settings = config or settings_of(
            "CheckpointCallback", save_path or None, options, job=name_prefix
        )
        if name_prefix == PREFIX and config is None:
            self._settings.forgotten("job")  # SB3's own word for it, which nobody has said

    @property
    def report(self) -> ResumeReport | None:
        """How the newest training started; None before it did."""
        return self._session.report if self._session is not None else None

    def request_save(self, reason: str = "") -> None:
        """Ask for a save as soon as that can be; may be called from any thread and from a signal handler.

        It is made between two environment steps (of ARS: between two updates). Where one `train()` or one
        evaluation that may outlast the `grace` lies before that, the copy that is held of the state before it is
        written at once, and a run that goes on from there does it again. Before the first step and after the end
        everything is saved already. Raises nothing.
        """
        if self._session is not None:
            self._session.request(reason or "requested by the script")

    def _init_callback(self) -> None:
        self._session = Session(
            self.model,
            self,
            self._settings,
            save_freq=self.save_freq,
            verbose=self.verbose,
            warm_up=self._warm_up,
        )
        self._session.open()

    def _on_step(self) -> bool:
        if self._session is not None:
            self._session.called(self.n_calls)
        return True

    def _on_training_end(self) -> None:
        if self._session is not None and self._session.report is None:
            self._session.never_began()


def _checked(warm_up: object) -> WarmUp | None:
    if warm_up is None or isinstance(warm_up, WarmUp):
        return warm_up
    raise ConfigError(
        f"warm_up must be a WarmUp, not {warm_up!r}.", hint="Write warm_up=WarmUp(episodes=10, least=50.0)."
    )


def _check_calls(save_freq: object) -> None:
    if save_freq is None:
        return
    if isinstance(save_freq, bool) or not isinstance(save_freq, int) or save_freq < 1:
        raise ConfigError(
            f"save_freq must be a whole number of calls of at least 1, not {save_freq!r}.",
            hint="It counts calls of env.step, as in Stable-Baselines3.",
        )


_OWN = {
    name: parameter.default
    for name, parameter in inspect.signature(CheckpointCallback.__init__).parameters.items()
    if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and name not in ("self", "verbose")
}


def _check_alone(given: Mapping[str, object]) -> None:
    """Settings come from one place. Raises ConfigError for an option that `config` would silence."""
    beside = sorted(name for name, value in given.items() if name not in _OWN or value != _OWN[name])
    if beside:
        raise ConfigError(
            f"config= holds every setting, and {', '.join(beside)} would be ignored beside it.",
            hint="Put them into the Settings, or leave config= out.",
        )
