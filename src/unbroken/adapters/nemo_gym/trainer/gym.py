"""`Gym`: rollouts on servers of NeMo Gym, as a part of a training that is saved and resumed.

Rollouts are sent under ids that a restart does not change, so that agents find again what they have written down. What
was handed out counts as trained on from the next checkpoint on; what was not is in the checkpoint, and is handed out,
or sent again, after a restart. An infrastructure that failed never becomes a reward.

Not promised: an order in which `take` returns rollouts that run at the same time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unbroken.adapters.nemo_gym.control import SessionSummary, Status
from unbroken.adapters.nemo_gym.trainer import addresses, migration
from unbroken.adapters.nemo_gym.trainer.coordinator import Coordinator
from unbroken.adapters.nemo_gym.trainer.fleet import Fleet
from unbroken.adapters.nemo_gym.trainer.ledger import Rollout
from unbroken.capture.policies import describe
from unbroken.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self


class Gym:
    """The servers of a NeMo Gym environment, and the rollouts on them.

    >>> from unbroken.nemo_gym import Gym
    >>> gym = Gym({"agent": "http://127.0.0.1:12002", "res": "http://127.0.0.1:12001"})  # doctest: +SKIP
    >>> run.track(policy=net, optimizer=opt, gym=gym)                                  # doctest: +SKIP
    >>> for step in run.steps(100):                                                    # doctest: +SKIP
    ...     rollouts = gym.collect(rows)

    `servers` are the instances by name, each wrapped by `checkpointed`. `agent` is who gets the rows that name no
    `agent_ref`. A save may take `sync_timeout` seconds for stopping the servers and taking over what changed. A rollout
    that servers refuse is sent `max_attempts` times; a server that is down is waited for, for `patience` seconds.
    `token` stands in for what follows from `UNBROKEN_KEY`, or the user's key.

    Nothing is asked of the servers before the first rollout, or the first step of the run that tracks this.

    Raises:
        ConfigError: an option cannot be used, or httpx is not installed.
    """

    def __init__(
        self,
        servers: Mapping[str, str],
        *,
        agent: str = "",
        sync_timeout: float = 300.0,
        concurrency: int = 64,
        max_attempts: int = 3,
        patience: float = 600.0,
        token: str | None = None,
    ) -> None:
        for option, value in (
            ("sync_timeout", sync_timeout), ("concurrency", concurrency),
            ("max_attempts", max_attempts), ("patience", patience),
        ):  # fmt: skip
            if not value > 0:
                raise ConfigError(f"{option}={value} cannot be used.", hint="Give a number above 0.")
        if agent and agent not in servers:
            raise ConfigError(
                f"There is no server {agent!r}, which is to be the agent.",
                hint=f"Known are {', '.join(servers)}.",
            )
        fleet = Fleet(servers, token=token, timeout=sync_timeout, patience=patience)
        self.coordinator = Coordinator(fleet, agent=agent, concurrency=concurrency, max_attempts=max_attempts)
        """What belongs to this package works with, and nobody else need."""

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], *, leave_out: Collection[str] = (), **options: Any
    ) -> Self:
        """Take the servers from NeMo Gym's global config dict, without those to `leave_out`.

        Raises:
            ConfigError: there is no server in it, or an option cannot be used.
        """
        return cls(addresses.servers_of(config, leave_out=leave_out), **options)

    @classmethod
    def from_head(cls, address: str, **options: Any) -> Self:
        """Take the servers from the configuration that the head server at `address` gives.

        Raises:
            ServerMissing: it does not answer.
            ConfigError: this is no head server, or an option cannot be used.
        """
        return cls.from_config(addresses.config_at(address), **options)

    def collect(
        self, rows: Sequence[Mapping[str, Any]], *, agent: str = "", policy_version: str | int = ""
    ) -> list[Rollout]:
        """Have a rollout made of each row, and return them in the order of the rows.

        One that came to no result is in the list, with `reward` None and the reason; a warning names it.

        Raises:
            ConfigError: a row cannot be sent, or names no agent.
            ServerMissing, Fenced: the servers are not there, or belong to another trainer.
        """
        of = self.coordinator
        ids = of.send(rows, agent=agent, policy_version=policy_version, owner="collect")
        try:
            of.wait(ids)
            return of.hand_out(ids)
        except BaseException:
            of.give_up(ids)
            raise

    def submit(
        self, rows: Sequence[Mapping[str, Any]], *, agent: str = "", policy_version: str | int = ""
    ) -> list[str]:
        """Have rollouts made, and return their ids at once; `take` returns them when they are done. Raises as
        `collect` does."""
        return self.coordinator.send(rows, agent=agent, policy_version=policy_version, owner="submit")

    def take(self, count: int, *, timeout: float | None = None) -> list[Rollout]:
        """Return `count` rollouts that were submitted, as they come to their ends; with a `timeout` perhaps fewer.

        Raises:
            ConfigError: there are not so many, done or under way.
            ServerMissing, Fenced: the servers are not there, or belong to another trainer.
        """
        ids = self.coordinator.first(count, owner="submit", timeout=timeout)
        return self.coordinator.hand_out(ids)

    @property
    def outstanding(self) -> int:
        """How many submitted rollouts are done or under way, and were not taken."""
        return self.coordinator.outstanding("submit")

    def status(self) -> dict[str, Status]:
        """Return how each server is."""
        return self.coordinator.fleet.statuses()

    def sessions(self) -> dict[str, list[SessionSummary]]:
        """Return what each agent and resources server keeps: rollouts, and sessions."""
        return {r.name: list(r.sessions()) for r in self.coordinator.fleet.of("agent", "resources")}

    def digests(self) -> dict[str, dict[str, str]]:
        """Return the digests of the live state: server -> session -> digest."""
        found = {r.name: r.digests() for r in self.coordinator.fleet.of("resources")}
        return {name: {s.id: s.digest for s in summaries} for name, summaries in found.items()}

    def migrate(self, session: str, *, source: str, target: str) -> None:
        """Move a live session from one process of a resources server to another, each by its name or address.

        Calls to it wait meanwhile, and go on there. See `migration.migrate`.

        Raises:
            ConfigError: there is no such server or session, or the two are not of one kind.
            ServerMissing: one of them did not answer, or refused; the message says where the session lives.
        """
        self.coordinator.connect()
        fleet = self.coordinator.fleet
        with fleet.reached(source) as giver, fleet.reached(target) as taker:
            migration.migrate(giver, taker, session)

    def close(self) -> None:
        """Send nothing any more, and close the connections. The servers stay as they are."""
        self.coordinator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def checkpoint_committed(self) -> None:
        """The state that was captured last is durable. See `capture.tracked.HearsOfCommits`."""
        self.coordinator.committed()


describe(__name__, f"{__name__.rpartition('.')[0]}.codec")
