"""`Gym`: rollouts on servers of NeMo Gym, as a part of a training that is saved and resumed.

Rollouts are sent under ids that a restart does not change, so that agents find again what they have written down. What
was handed out counts as trained on from the next checkpoint on; what was not is in the checkpoint, and is handed out,
or sent again, after a restart. An infrastructure that failed never becomes a reward.

Not promised: an order in which `take` returns rollouts that run at the same time.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unbroken.adapters.nemo_gym.control import Exported, SessionSummary, Status
from unbroken.adapters.nemo_gym.trainer import addresses, cut, migration
from unbroken.adapters.nemo_gym.trainer.dispatch import Dispatcher
from unbroken.adapters.nemo_gym.trainer.fleet import Fleet
from unbroken.adapters.nemo_gym.trainer.held import Held
from unbroken.adapters.nemo_gym.trainer.ledger import Ledger, Owner, Rollout
from unbroken.adapters.nemo_gym.trainer.payload import Payload, Setting
from unbroken.adapters.nemo_gym.trainer.remote import Declined
from unbroken.capture.policies import describe
from unbroken.errors import ConfigError, Fenced, ServerMissing, UnbrokenError

if TYPE_CHECKING:
    from typing_extensions import Self

SHOWN = 3
"""So many rollouts or servers are named in a warning."""


class RolloutWarning(UserWarning):
    """Rollouts came to no result, or a server did not hear what it should know."""


class Gym:
    """The servers of a NeMo Gym environment, and the rollouts on them.

    >>> from unbroken.nemo_gym import Gym
    >>> gym = Gym({"agent": "http://127.0.0.1:12002", "res": "http://127.0.0.1:12001"})  # doctest: +SKIP
    >>> run.track(policy=net, optimizer=opt, gym=gym)                                  # doctest: +SKIP
    >>> for step in run.steps(100):                                                    # doctest: +SKIP
    ...     rollouts = gym.collect(rows)

    `servers` are the instances by name, each wrapped by `checkpointed`. `agent` is who gets the rows that name no
    `agent_ref`. A save may take `sync_timeout` seconds for stopping the servers and taking over what changed. A rollout
    that an infrastructure loses is sent `max_attempts` times; a server that is down is waited for, for `patience` seconds.
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
        self._fleet = Fleet(servers, token=token, timeout=sync_timeout, patience=patience)
        self._agent = agent
        self._concurrency = concurrency
        self._max_attempts = max_attempts
        self._name = f"{os.uname().nodename}:{os.getpid()}"
        self._changed = threading.Condition()
        self._ledger = Ledger()
        self._dispatcher = self._dispatcher_of(self._ledger)
        self._held: dict[str, Held] = {}
        self._waking = False
        """Whether rollouts of before a restart are still to be sent."""
        self._begun = False
        """Whether the run was restored, or has begun anew."""
        self._meeting = threading.RLock()
        """Held while the servers are adopted, opened or told a policy: two threads that did it at once would fence
        each other off."""
        self._adopted = False
        self._open = False
        self._policy_version = ""
        self._telling: threading.Thread | None = None
        self._untold: UnbrokenError | None = None

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
        ids = self._send(rows, agent=agent, policy_version=policy_version, owner="collect")
        try:
            self._wait(ids)
        except BaseException:
            with self._changed:  # nobody will ask for them
                self._ledger.give_up(ids)
            raise
        return self._hand_out(ids)

    def submit(
        self, rows: Sequence[Mapping[str, Any]], *, agent: str = "", policy_version: str | int = ""
    ) -> list[str]:
        """Have rollouts made, and return their ids at once; `take` returns them when they are done. Raises as
        `collect` does."""
        return self._send(rows, agent=agent, policy_version=policy_version, owner="submit")

    def take(self, count: int, *, timeout: float | None = None) -> list[Rollout]:
        """Return `count` rollouts that were submitted, as they come to their ends; with a `timeout` perhaps fewer.

        Raises:
            ConfigError: there are not so many, done or under way.
            ServerMissing, Fenced: the servers are not there, or belong to another trainer.
        """
        self._ready()
        with self._changed:
            there = self._ledger.outstanding("submit")
            if there < count:
                raise ConfigError(
                    f"{count} rollouts are to be taken and {there} are there.", hint="Submit more."
                )
            self._until(lambda: len(self._ledger.finished("submit")) >= count, timeout)
            ids = self._ledger.finished("submit")[:count]
        return self._hand_out(ids)

    @property
    def outstanding(self) -> int:
        """How many submitted rollouts are done or under way, and were not taken."""
        with self._changed:
            return self._ledger.outstanding("submit")

    def status(self) -> dict[str, Status]:
        """Return how each server is."""
        return self._fleet.statuses()

    def sessions(self) -> dict[str, list[SessionSummary]]:
        """Return what each agent and resources server keeps: rollouts, and sessions."""
        return {r.name: list(r.sessions()) for r in self._fleet.of("agent", "resources")}

    def digests(self) -> dict[str, dict[str, str]]:
        """Return the digests of the live state: server -> session -> digest."""
        found = {r.name: r.digests() for r in self._fleet.of("resources")}
        return {name: {s.id: s.digest for s in summaries} for name, summaries in found.items()}

    def migrate(self, session: str, *, source: str, target: str) -> None:
        """Move a live session from one process of a resources server to another, each by its name or address.

        Calls to it wait meanwhile, and go on there. See `migration.migrate`.

        Raises:
            ConfigError: there is no such server or session, or the two are not of one kind.
            ServerMissing: one of them did not answer, or refused; the message says where the session lives.
        """
        self._connect()
        with self._fleet.reached(source) as giver, self._fleet.reached(target) as taker:
            migration.migrate(giver, taker, session)

    def close(self) -> None:
        """Send nothing any more, and close the connections. The servers stay as they are."""
        self._dispatcher.close()
        if self._telling is not None:
            self._telling.join(self._fleet.timeout)
        self._fleet.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def checkpoint_committed(self) -> None:
        """The state that was captured last is durable: the servers need not keep what is consumed in it. See
        `capture.tracked.HearsOfCommits`."""
        with self._changed:
            marks = {name: held.since.mark for name, held in self._held.items()}
            gone = self._ledger.rollouts_to_drop()
            ledger = self._ledger
        before = self._telling

        def tell() -> None:
            if before is not None:
                before.join()
            try:
                cut.together(
                    lambda remote: remote.committed(marks[remote.name]),
                    [self._fleet.remotes[name] for name in marks],
                )
                self._fleet.drop(gone)
            except UnbrokenError as error:
                self._untold = error
                return
            with self._changed:
                ledger.dropped(gone)

        # Off the writer's thread: a slow server must not hold up the next save.
        self._telling = threading.Thread(target=tell, name="unbroken-gym-committed", daemon=True)
        self._telling.start()

    # What the codec and the queue of this package need.

    def _settings(self) -> Payload:
        return Payload(settings={name: Setting.of(s) for name, s in self._fleet.present().items()})

    def _capture(self) -> Payload:
        """Stop the servers for a moment, and return the whole state."""
        self._raise_untold()
        with self._meeting:
            self._connect()
            if not self._begun:
                self._begin()
        since = {name: held.since for name, held in self._held.items()}
        try:
            parts = cut.cut(self._fleet.by_role, since, timeout=self._fleet.timeout, lacks=self._lacks)
        except BaseException as error:
            for held in self._held.values():
                held.forget()
            if isinstance(error, Fenced):
                self._check_epochs(error)
            raise
        self._open = True
        for name, part in parts.items():
            if lacking := self._lacks(name, part.exported):
                warnings.warn(
                    f"{name} has lost {len(lacking)} of the images that its records name; what needs them will be refused"
                    " if this checkpoint is restored elsewhere.",
                    RolloutWarning,
                    stacklevel=2,
                )
            self._held.setdefault(name, Held()).apply(part.exported)
        with self._changed:
            ledger = self._ledger.encode()
        return Payload(
            settings={name: Setting.of(part.status) for name, part in parts.items()},
            time=time.time(),
            ledger=ledger,
            servers={name: self._held[name].part(part.status) for name, part in parts.items()},
        )

    def _lacks(self, name: str, exported: Exported) -> set[str]:
        return self._held.get(name, Held()).lacks(exported)

    def _restored(self, ledger: Ledger, held: dict[str, Held], *, leaves: str = "") -> None:
        """Go on from a checkpoint; the servers are as it wants them. Nothing is sent before somebody asks for it.

        `leaves`: why what servers hold and the ledger does not know is dropped.
        """
        self._dispatcher.close()
        with self._changed:
            ledger.resume()
            self._ledger, self._held = ledger, held
            self._dispatcher = self._dispatcher_of(ledger)
            self._waking = True
        if leaves:
            dropped = self._drop_unknown()
            sys.stderr.write(
                f"unbroken: the training leaves what it had begun after this checkpoint ({leaves}): new rollouts are named"
                f" {ledger.timeline}…, and {dropped} others are dropped by the servers\n"
            )
        self._fleet.release()
        self._begun = self._open = True

    def _connect(self) -> None:
        """Become the servers' coordinator, once."""
        with self._meeting:
            if not self._adopted:
                self._fleet.settled()
                self._fleet.adopt(self._name)
                self._adopted = True

    def _send(
        self, rows: Sequence[Mapping[str, Any]], *, agent: str, policy_version: str | int, owner: Owner
    ) -> list[str]:
        self._ready()
        agents = [self._agent_of(row, agent) for row in rows]
        version = str(policy_version)
        with self._meeting:
            if version and version != self._policy_version:
                for remote in self._fleet.of("model"):
                    remote.policy(version)
                self._policy_version = version
        with self._changed:
            ids = self._ledger.add(rows, agents, owner=owner, policy_version=version)
            self._dispatcher.send(ids)
        return ids

    def _ready(self) -> None:
        """See to it that the servers let rollouts in, and that those of before a restart are under way."""
        with self._meeting:
            self._connect()
            if (
                not self._begun
            ):  # nobody saves this Gym, so its ids begin where those of the last process began
                self._begin()
            if not self._open:
                self._fleet.release()
                self._open = True
        with self._changed:
            if self._waking:
                self._waking = False
                self._dispatcher.send(self._ledger.open())

    def _wait(self, ids: Sequence[str]) -> None:
        with self._changed:
            self._until(lambda: self._ledger.is_finished(ids))

    def _hand_out(self, ids: Sequence[str]) -> list[Rollout]:
        with self._changed:
            found = self._ledger.hand_out(ids)
        bad = [rollout for rollout in found if rollout.outcome != "completed"]
        if bad:
            shown = "; ".join(f"{r.id} ({r.outcome}): {r.error}" for r in bad[:SHOWN])
            more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
            warnings.warn(
                f"{len(bad)} of {len(found)} rollouts have no reward, and are not to be trained on: {shown}{more}",
                RolloutWarning,
                stacklevel=3,
            )
        return found

    def _knows(self, ids: Sequence[str]) -> bool:
        with self._changed:
            return all(self._ledger.knows(rollout) for rollout in ids)

    def _until(self, done: Callable[[], bool], timeout: float | None = None) -> None:
        """Wait with `changed` held until something is so, or the time is over."""

        def over() -> bool:
            return self._dispatcher.trouble is not None or done()

        self._changed.wait_for(over, timeout)
        trouble = self._dispatcher.trouble
        if trouble is not None and not done():
            raise trouble

    def _dispatcher_of(self, ledger: Ledger) -> Dispatcher:
        return Dispatcher(
            ledger,
            self._changed,
            address=lambda agent: self._fleet.get(agent).url,
            concurrency=self._concurrency,
            max_attempts=self._max_attempts,
            patience=self._fleet.patience,
        )

    def _agent_of(self, row: Mapping[str, Any], agent: str) -> str:
        reference = row.get("agent_ref")
        named = reference.get("name") if isinstance(reference, Mapping) else None
        agents = [remote.name for remote in self._fleet.of("agent")]
        chosen = agent or named or self._agent or (agents[0] if len(agents) == 1 else "")
        if chosen not in agents:
            what = f"{chosen!r} is no agent here" if chosen else "A row names no agent"
            raise ConfigError(
                f"{what}.",
                hint=f"Give agent=, or agent_ref in the row: {', '.join(agents) or 'none is there'}.",
            )
        return str(chosen)

    def _begin(self) -> None:
        """Begin a run anew: what another one has left on the servers would be taken for this one's."""
        if dropped := self._drop_unknown():
            sys.stderr.write(
                f"unbroken: the run begins anew: {dropped} rollouts that another one had left on the servers are dropped\n"
            )
        self._begun = True

    def _drop_unknown(self) -> int:
        """Have the servers drop all rollouts that the ledger does not know; return how many there were."""
        with self._changed:
            own = set(self._ledger.ids())
        left: set[str] = set()
        agents = self._fleet.of("agent")
        for remote in self._fleet.of("agent", "resources"):
            left.update(s.rollout or (s.id if remote in agents else "") for s in remote.sessions())
        gone = sorted(left - own - {""})
        self._fleet.drop(gone)
        return len(gone)

    def _check_epochs(self, fenced: Fenced) -> None:
        """A server with an older epoch than it was given has lost its log, and no other trainer is to blame."""
        for name, status in self._fleet.statuses().items():
            if status.epoch < self._fleet.remotes[name].epoch:
                raise ServerMissing(
                    f"The server {name} came back without its log.",
                    hint="Start the training again: the checkpoint's records are then put in its place.",
                    servers=[name],
                ) from fenced

    def _raise_untold(self) -> None:
        """Tell what went wrong when the servers were to hear of a commit. They hear of the next one."""
        telling = self._telling
        if telling is not None:
            telling.join(self._fleet.timeout)
            if telling.is_alive():  # what it has them drop must not be taken over half
                raise ServerMissing(
                    f"Servers are still being told of the last checkpoint after {self._fleet.timeout:g} s,"
                    " and nothing is taken over before.",
                    servers=self._held,
                )
        error, self._untold = self._untold, None
        if isinstance(error, Fenced):
            self._check_epochs(error)
            raise error
        if isinstance(error, (ServerMissing, Declined)):
            warnings.warn(
                f"Not all servers heard of the last checkpoint, and keep more than they need: {error}",
                RolloutWarning,
                stacklevel=2,
            )
        elif error is not None:
            raise error


describe(__name__, f"{__name__.rpartition('.')[0]}.codec")
