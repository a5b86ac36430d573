"""The callback that a person puts into `learn()`. All work is done by the session behind it."""

from __future__ import annotations

import os
from collections.abc import Collection

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from unbroken.adapters.sb3.session import Session
from unbroken.engine.report import ResumeReport
from unbroken.engine.schedule import DEFAULT_EVERY, Every
from unbroken.engine.settings import Resume, Settings, WorstTier
from unbroken.errors import ConfigError
from unbroken.format.manifest import DocumentFormat
from unbroken.repo.retention import Best


class CheckpointCallback(BaseCallback):
    """Saves a training so that the same script, started again after a kill, ends as if never killed.

    Takes the place of the callback of the same name in `stable_baselines3.common.callbacks`, with the same
    arguments. `save_freq` counts calls of the callback (steps of the vector of environments); `every`
    may be given instead, in environment steps, seconds or episodes. Checkpoints of the run `name_prefix`
    lie below `save_path`; the variable UNBROKEN_ROOT moves them elsewhere. Everything is always saved, replay
    buffer and `VecNormalize` too: `save_replay_buffer` and `save_vecnormalize` are accepted and change nothing.

    The callback may stand anywhere among the others. It never changes a result by being there.

    >>> from unbroken.sb3 import CheckpointCallback
    >>> model.learn(100_000, callback=CheckpointCallback(1000, "runs"))  # doctest: +SKIP

    Raises ConfigError where a setting cannot be used; `learn()` raises what resuming or saving meets.
    """

    def __init__(
        self,
        save_freq: int | None = None,
        save_path: str | os.PathLike[str] = "",
        name_prefix: str = "rl_model",
        save_replay_buffer: bool = False,  # noqa: FBT001, FBT002 - the arguments of SB3's own callback
        save_vecnormalize: bool = False,  # noqa: FBT001, FBT002
        verbose: int = 0,
        *,
        every: Every | int | None = None,
        keep_last: int = 5,
        best: Best | None = None,
        keep_first: bool = False,
        resume: Resume = "auto",
        worst_tier: WorstTier = "rebuilt",
        strict: bool = False,
        allow_changed: Collection[str] = (),
        trust: bool = False,
        document_format: DocumentFormat = "json",
        config: Settings | None = None,
    ) -> None:
        super().__init__(verbose)
        if save_freq is not None and every is not None:
            raise ConfigError("save_freq and every both say when to save.", hint="Give one of them.")
        _check_calls(save_freq)
        self.save_freq = save_freq
        self._session: Session | None = None
        self._settings = config or Settings(
            root=save_path or os.environ.get("UNBROKEN_ROOT", ""),
            job=name_prefix,
            every=DEFAULT_EVERY if every is None else every,
            keep_last=keep_last,
            best=best,
            keep_first=keep_first,
            resume=resume,
            worst_tier=worst_tier,
            strict=strict,
            allow_changed=allow_changed,
            trust=trust,
            document_format=document_format,
        )

    @property
    def report(self) -> ResumeReport | None:
        """How the newest training started; None before it did."""
        return self._session.report if self._session is not None else None

    def _init_callback(self) -> None:
        model = self.model
        if not isinstance(model, (OnPolicyAlgorithm, OffPolicyAlgorithm)):
            raise ConfigError(
                f"{type(model).__name__} has a training loop that is not known.",
                hint="Algorithms with collect_rollouts are: every one of SB3, and of sb3-contrib all but ARS.",
            )
        self._session = Session(model, self, self._settings, save_freq=self.save_freq, verbose=self.verbose)
        self._session.open()

    def _on_step(self) -> bool:
        if self._session is not None:
            self._session.called(self.n_calls)
        return True

    def _on_training_end(self) -> None:
        if self._session is not None and self._session.report is None:
            self._session.never_began()


def _check_calls(save_freq: object) -> None:
    if save_freq is None:
        return
    if isinstance(save_freq, bool) or not isinstance(save_freq, int) or save_freq < 1:
        raise ConfigError(
            f"save_freq must be a whole number of calls of at least 1, not {save_freq!r}.",
            hint="It counts calls of env.step, as in Stable-Baselines3.",
        )
