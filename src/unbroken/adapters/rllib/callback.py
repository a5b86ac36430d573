"""The callback of an RLlib run, and the function that a person configures it with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ray.rllib.callbacks.callbacks import RLlibCallback

from unbroken.adapters.rllib.session import Session
from unbroken.adapters.rllib.supported import check_supported
from unbroken.adapters.rllib.trial import trial_of
from unbroken.engine.configuration.effective import from_file
from unbroken.engine.options import Options, settings_of, takes_settings
from unbroken.engine.report import ResumeReport
from unbroken.engine.settings import Settings
from unbroken.engine.trials import settings_of_trial
from unbroken.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Unpack


class CheckpointCallback(RLlibCallback):
    """Saves an Algorithm and resumes it. Configured by `checkpoints`, which returns a class as RLlib wants it.

    RLlib makes one instance in the process of the Algorithm, which saves, and one in each env runner, which
    gives episodes names that are the same in every run.
    """

    settings: ClassVar[Settings | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.session: Session | None = None
        self.episodes = 0
        """Episodes that this instance has named."""
        self.ended = 0
        """Of those, how many have ended."""
        self.lives = 0
        """How many env runners had died when the one of this instance began; 0 for the first."""

    @property
    def report(self) -> ResumeReport | None:
        """How the training started; None before it did, and in env runners."""
        return self.session.report if self.session is not None else None

    def on_algorithm_init(self, *, algorithm: Any, metrics_logger: Any = None, **kwargs: Any) -> None:
        """Resume. What is built by now is all that there will be."""
        settings = type(self).settings
        if settings is None:
            raise ConfigError(
                "CheckpointCallback has no settings.", hint='Use unbroken.rllib.checkpoints("runs/ppo").'
            )
        if algorithm.callbacks[-1] is not self:
            raise ConfigError(
                "A callback after unbroken.rllib.checkpoints(...) would change what it has restored.",
                hint="Put it last in the list of callbacks.",
            )
        check_supported(algorithm)
        trial = trial_of(algorithm)
        if trial:
            settings = settings_of_trial(settings, os.environ)
            settings = settings.changed(job=f"{settings.job}-{trial}")
        session = Session(algorithm, settings)
        session.open()
        self.session = session

    def on_episode_created(self, *, episode: Any, env_runner: Any = None, **kwargs: Any) -> None:
        """Name the episode. RLlib draws names from the system's entropy, and buffers keep them."""
        if env_runner is None or episode is None:
            return
        group = "eval" if env_runner.config.in_evaluation else "train"
        life = f".{self.lives}" if self.lives else ""
        episode.id_ = f"{group}-{env_runner.worker_index or 0}{life}-{self.episodes:010d}"
        self.episodes += 1

    def on_episode_start(self, *, episode: Any, **kwargs: Any) -> None:
        """Name the parts of an episode of many agents, which exist once the agents do."""
        _name_agents(episode)

    def on_episode_step(self, *, episode: Any, **kwargs: Any) -> None:
        """Name the parts of agents that came only now."""
        _name_agents(episode)

    def on_episode_end(self, **kwargs: Any) -> None:
        """Count it."""
        self.ended += 1

    def on_env_runners_recreated(
        self,
        *,
        algorithm: Any,
        env_runner_group: Any,
        env_runner_indices: Sequence[int],
        is_evaluation: bool,
        **kwargs: Any,
    ) -> None:
        """Let runners that took the place of dead ones not repeat what those did."""
        if self.session is not None:
            self.session.recreated(env_runner_group, env_runner_indices)


def _name_agents(episode: Any) -> None:
    for agent, part in getattr(episode, "agent_episodes", {}).items():
        if not part.id_.startswith(episode.id_):
            part.id_ = f"{episode.id_}-{agent}"


@takes_settings()
def checkpoints(
    root: str | os.PathLike[str] | None = None,
    *,
    job: str = "",
    **options: Unpack[Options],
) -> type[CheckpointCallback]:
    """Return a callback class for `AlgorithmConfig.callbacks()`; in a list of callbacks it stands last.

    The Algorithm is saved at the ends of iterations only. `every` is a number of environment steps, over all
    env runners and as RLlib counts them (`num_env_steps_sampled_lifetime`), or an `Every`; left out, a kill
    costs at most 5 minutes of work. The other options are those of `unbroken.Settings`. Under Tune each trial is a
    run of its own, named by its id.

    Raises ConfigError where a setting cannot be used; `build_algo()` raises what resuming meets.

    >>> import unbroken.rllib
    >>> config.callbacks(unbroken.rllib.checkpoints("runs/ppo", every=10_000))  # doctest: +SKIP
    """
    # The file lies beside the script, and an Algorithm may be built on another machine.
    settings = from_file(settings_of("checkpoints", root, options, job=job), os.environ)
    # Env runners and trials in other processes get it by value: nothing there knows this name.
    return type("Checkpoints", (CheckpointCallback,), {"settings": settings, "__module__": __name__})
