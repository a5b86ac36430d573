"""The processes that train one run together, as one of them sees it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from unbroken.engine.saying import say
from unbroken.engine.schedule import Every
from unbroken.engine.settings import Settings, check_seconds
from unbroken.errors import ConfigError
from unbroken.repo.coordinator import Ranks
from unbroken.state.parts import split_name

REPLICATED = frozenset({"policy_weights", "target_weights", "optimizer_states", "scheduler_states"})
"""What data-parallel training keeps the same on every rank."""

SYNC_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Rank `rank` of `size` processes. Rank 0 is the coordinator: it decides when to save and from where to go on.

    `replicated` names the components that are the same on every rank: they are written once, by rank 0, and
    compared byte for byte at every save. All others are saved and restored per rank. Leave it empty for
    ranks that train models, or shards, of their own.

    `sync_timeout`: seconds that a rank may keep the others waiting in a save, its own write included.
    `start_timeout`: seconds until all ranks are there, and have read what they go on from.

    `agree` gives on every rank the answer of rank 0; each must call it equally often (a broadcast of a process
    group). One that says yes where any rank does (a reduction) lets a signal to any rank save and end all. Without it ranks can only save at steps that all can tell by themselves: `Every(steps=…)`.

    Raises:
        ConfigError: rank and size contradict each other, or `replicated` names no components that all ranks can have.

    >>> World(rank=1, size=4).is_coordinator
    False
    """

    rank: int
    size: int
    replicated: Collection[str] = REPLICATED
    sync_timeout: float = SYNC_SECONDS
    start_timeout: float = 600.0
    agree: Callable[[bool], bool] | None = None
    origin: str = ""
    """Who has told rank and size, for errors about ranks that do not come."""

    def __post_init__(self) -> None:
        numbers: tuple[tuple[str, object, int], ...] = (("size", self.size, 1), ("rank", self.rank, 0))
        for name, value, least in numbers:
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(
                    f"{name} must be a whole number of at least {least}, not {value!r}.",
                    hint="Take rank and size from your launcher.",
                )
        if self.rank >= self.size:
            raise ConfigError(
                f"There is no rank {self.rank} among {self.size}.", hint="Ranks are counted from 0."
            )
        if isinstance(self.replicated, str):
            raise ConfigError(
                f"replicated must be a set of components, not {self.replicated!r}.",
                hint=f"Write replicated={{{self.replicated!r}}}.",
            )
        object.__setattr__(self, "replicated", frozenset(self.replicated))
        labelled = sorted(name for name in self.replicated if split_name(name)[1] is not None)
        if labelled:
            raise ConfigError(
                f"{labelled[0]!r} is what one rank has; replicated names what all have.",
                hint=f"Write {split_name(labelled[0])[0]!r}.",
            )
        for name in ("sync_timeout", "start_timeout"):
            check_seconds(name, getattr(self, name))

    @property
    def is_coordinator(self) -> bool:
        """Whether this is rank 0, which writes the run and gives the orders."""
        return self.rank == 0

    @property
    def ranks(self) -> Ranks:
        """What the repository needs to know of the world."""
        return Ranks(
            size=self.size,
            replicated=frozenset(self.replicated),
            sync_timeout=self.sync_timeout,
            start_timeout=self.start_timeout,
            origin=self.origin,
            tell=_tell,
        )

    def check_replicated(self, components: Collection[str]) -> None:
        """Raise ConfigError where a component is to be the same on all ranks and there is none of that name."""
        unknown = sorted(frozenset(self.replicated) - REPLICATED - frozenset(components))
        if unknown:
            raise ConfigError(
                f"replicated names {unknown[0]!r}, and rank {self.rank} has no such component.",
                hint=f"It has: {', '.join(sorted(components))}.",
            )

    def check_interval(self, every: Every) -> None:
        """Raise ConfigError where ranks could not come to the same moment for a save."""
        others = (every.seconds, every.episodes, every.max_loss, every.max_overhead)
        if self.agree is None and any(value is not None for value in others):
            raise ConfigError(
                f"{self.size} ranks cannot agree on a moment for a save by {every}: each has its own clock and"
                " episodes, and there is no process group to ask.",
                hint="Give a number of steps: every=1000.",
            )


def speaks_for_run(world: World | None) -> bool:
    """Return whether this process stands for the run: it is alone, or rank 0."""
    return world is None or world.is_coordinator


def _tell(text: str) -> None:
    say(f"unbroken: {text}")


def usual(world: World | None, settings: Settings) -> World | None:
    """Return the world under these settings, None where a process is alone in it: then nothing has to be agreed on.

    A `sync_timeout` of the settings takes the place of the world's, but one in the configuration file does not
    where the script has given the world one.
    """
    if world is None or world.size == 1:
        return None
    wanted = settings.sync_timeout
    in_file = settings.origins.get("sync_timeout", "").startswith(f"{settings.config_file}:")
    if wanted is None or (in_file and settings.config_file and world.sync_timeout != SYNC_SECONDS):
        return world
    return replace(world, sync_timeout=wanted)
