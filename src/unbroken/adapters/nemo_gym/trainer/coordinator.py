"""The servers of one training, and the rollouts on them: adopted once, sent to, stopped for a save, brought to a checkpoint.

What `Gym` is to a program, this is to what belongs to it: the queue, the codec, a restoration. It may be used by several
threads; `changed` guards the ledger, and is notified when a rollout comes to its end.

Invariants: the servers are adopted once, and opened before the first rollout; nothing is taken over from them while they
are still told of the last checkpoint.

Not promised: an order in which rollouts finish that run at the same time.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unbroken.adapters.nemo_gym.control import Exported
from unbroken.adapters.nemo_gym.trainer import cut
from unbroken.adapters.nemo_gym.trainer.dispatch import Dispatcher
from unbroken.adapters.nemo_gym.trainer.fleet import Fleet
from unbroken.adapters.nemo_gym.trainer.held import Held
from unbroken.adapters.nemo_gym.trainer.ledger import Ledger, Owner, Rollout
from unbroken.adapters.nemo_gym.trainer.payload import Payload, Setting
from unbroken.adapters.nemo_gym.trainer.remote import Declined, Remote
from unbroken.engine.saying import say
from unbroken.errors import ConfigError, Fenced, ServerMissing, UnbrokenError

SAYS_WITHIN = 10.0
"""Seconds in which an agent has to say whose it is; one that says nothing is no reason to stop."""
SHOWN = 3
"""So many rollouts or servers are named in a warning."""


class RolloutWarning(UserWarning):
    """Rollouts came to no result, or a server did not hear what it should know."""


class Coordinator:
    """Of the servers of one `Gym`. `agent` is who gets the rows that name none. Nothing is asked before the first method is
    called that needs an answer."""

    def __init__(self, fleet: Fleet, *, agent: str, concurrency: int, max_attempts: int) -> None:
        self.fleet = fleet
        self._agent = agent
        self._concurrency = concurrency
        self._max_attempts = max_attempts
        self._name = f"{os.uname().nodename}:{os.getpid()}"
        self.changed = threading.Condition()
        self.ledger = Ledger()
        self._dispatcher = self._dispatcher_of(self.ledger)
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

    def connect(self) -> None:
        """Adopt the servers, once."""
        with self._meeting:
            if not self._adopted:
                self.fleet.settled()
                self.fleet.adopt(self._name)
                self._adopted = True

    def ready(self) -> None:
        """See to it that the servers let rollouts in, and that those of before a restart are under way."""
        with self._meeting:
            self.connect()
            if (
                not self._begun
            ):  # nobody saves this one, so its ids begin where those of the last process began
                self._begin()
            if not self._open:
                self.fleet.release()
                self._open = True
        with self.changed:
            if self._waking:
                self._waking = False
                self._dispatcher.send(self.ledger.open())

    def send(
        self, rows: Sequence[Mapping[str, Any]], *, agent: str, policy_version: str | int, owner: Owner
    ) -> list[str]:
        """Have a rollout made of each row; return their ids at once.

        Raises:
            ConfigError: a row cannot be sent, or names no agent.
            ServerMissing, Fenced: the servers are not there, or belong to another trainer.
        """
        self.ready()
        self.check_not_fenced()
        agents = [self._agent_of(row, agent) for row in rows]
        version = str(policy_version)
        with self._meeting:
            if version and version != self._policy_version:
                for remote in self.fleet.of("model"):
                    remote.policy(version)
                self._policy_version = version
        with self.changed:
            ids = self.ledger.add(rows, agents, owner=owner, policy_version=version)
            self._dispatcher.send(ids)
        return ids

    def wait(self, ids: Sequence[str]) -> None:
        """Wait until all of these have come to their ends."""
        with self.changed:
            self._until(lambda: self.ledger.is_finished(ids))

    def first(self, count: int, *, owner: Owner, timeout: float | None = None) -> list[str]:
        """Return the ids of the `count` rollouts of an owner that have finished first, perhaps fewer with a `timeout`.

        Raises:
            ConfigError: there are not so many, done or under way.
        """
        self.ready()
        with self.changed:
            there = self.ledger.outstanding(owner)
            if there < count:
                raise ConfigError(
                    f"{count} rollouts are to be taken and {there} are there.", hint="Submit more."
                )
            self._until(lambda: len(self.ledger.finished(owner)) >= count, timeout)
            return self.ledger.finished(owner)[:count]

    def outstanding(self, owner: Owner) -> int:
        """Return how many rollouts of an owner are done or under way, and were not handed out."""
        with self.changed:
            return self.ledger.outstanding(owner)

    def hand_out(self, ids: Sequence[str]) -> list[Rollout]:
        """Return finished rollouts, each for the only time. A warning names those without a reward.

        Raises:
            Fenced: the servers belong to another trainer by now; nothing is handed out.
        """
        self.check_not_fenced()
        with self.changed:
            found = self.ledger.hand_out(ids)
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

    def knows(self, ids: Sequence[str]) -> bool:
        """Whether these are in the ledger."""
        with self.changed:
            return all(self.ledger.knows(rollout) for rollout in ids)

    def give_up(self, ids: Sequence[str]) -> None:
        """Forget rollouts that nobody will ask for."""
        with self.changed:
            self.ledger.give_up(ids)
            self._dispatcher.give_up(ids)

    def check_not_fenced(self) -> None:
        """Ask the agents, which take a rollout from anybody, whether they are still this trainer's.

        Raises:
            Fenced: another has taken one over. Two trainings that go on at once would train on each other's rollouts.
        """

        def epoch(remote: Remote) -> int:
            try:
                return remote.status(timeout=SAYS_WITHIN).epoch
            except ServerMissing:  # it is down, and waited for elsewhere
                return 0

        for name, found in cut.together(epoch, self.fleet.of("agent")).items():
            if found > self.fleet.remotes[name].epoch:
                raise Fenced(
                    f"Another trainer has taken over the server {name} since.",
                    hint="End this one, or end the other and start this one again.",
                    epoch=found,
                )

    def settings(self) -> Payload:
        """Return what a changed setting is found by."""
        return Payload(settings={name: Setting.of(s) for name, s in self.fleet.present().items()})

    def capture(self) -> Payload:
        """Stop the servers for a moment, and return the whole state."""
        self.raise_untold()
        with self._meeting:
            self.connect()
            if not self._begun:
                self._begin()
        since = {name: held.since for name, held in self._held.items()}
        try:
            parts = cut.cut(self.fleet.by_role, since, timeout=self.fleet.timeout, lacks=self._lacks)
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
        with self.changed:
            ledger = self.ledger.encode()
        return Payload(
            settings={name: Setting.of(part.status) for name, part in parts.items()},
            time=time.time(),
            ledger=ledger,
            servers={name: self._held[name].part(part.status) for name, part in parts.items()},
        )

    def go_on(self, ledger: Ledger, held: dict[str, Held], *, leaves: str = "") -> None:
        """Go on from a checkpoint; the servers are as it wants them. Nothing is sent before somebody asks for it.

        `leaves`: why what servers hold and the ledger does not know is dropped.
        """
        self._dispatcher.close()
        with self.changed:
            ledger.resume()
            self.ledger, self._held = ledger, held
            self._dispatcher = self._dispatcher_of(ledger)
            self._waking = True
        if leaves:
            dropped = self._drop_unknown()
            say(
                f"unbroken: the training leaves what it had begun after this checkpoint ({leaves}): new rollouts are named"
                f" {ledger.timeline}…, and the servers drop what they have of {dropped} others"
            )
        self.fleet.release()
        self._begun = self._open = True

    def committed(self) -> None:
        """The state that was captured last is durable: tell the servers, which need not keep what is consumed in it."""
        with self.changed:
            marks = {name: held.since.mark for name, held in self._held.items()}
            gone = self.ledger.rollouts_to_drop()
            ledger = self.ledger
        before = self._telling

        def tell() -> None:
            if before is not None:
                before.join()
            try:
                cut.together(
                    lambda remote: remote.committed(marks[remote.name]),
                    [self.fleet.remotes[name] for name in marks],
                )
                self.fleet.drop(gone)
            except UnbrokenError as error:
                self._untold = error
                return
            with self.changed:
                ledger.dropped(gone)

        # Off the writer's thread: a slow server must not hold up the next save.
        self._telling = threading.Thread(target=tell, name="unbroken-gym-committed", daemon=True)
        self._telling.start()

    def raise_untold(self) -> None:
        """Tell what went wrong when the servers were to hear of a commit. They hear of the next one."""
        if not self.wait_told(self.fleet.timeout):  # what it has them drop must not be taken over half
            raise ServerMissing(
                f"Servers are still being told of the last checkpoint after {self.fleet.timeout:g} s,"
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

    def wait_told(self, timeout: float | None = None) -> bool:
        """Wait until the servers have been told of the last checkpoint; return whether they have."""
        telling = self._telling
        if telling is None:
            return True
        telling.join(timeout)
        return not telling.is_alive()

    def close(self) -> None:
        """Send nothing any more, and close the connections. The servers stay as they are."""
        self._dispatcher.close()
        self.wait_told(self.fleet.timeout)
        self.fleet.close()

    def _lacks(self, name: str, exported: Exported) -> set[str]:
        return self._held.get(name, Held()).lacks(exported)

    def _until(self, done: Callable[[], bool], timeout: float | None = None) -> None:
        """Wait with `changed` held until something is so, or the time is over."""

        def over() -> bool:
            return self._dispatcher.trouble is not None or done()

        self.changed.wait_for(over, timeout)
        trouble = self._dispatcher.trouble
        if trouble is not None and not done():
            raise trouble

    def _dispatcher_of(self, ledger: Ledger) -> Dispatcher:
        return Dispatcher(
            ledger,
            self.changed,
            address=lambda agent: self.fleet.get(agent).url,
            concurrency=self._concurrency,
            max_attempts=self._max_attempts,
            patience=self.fleet.patience,
        )

    def _agent_of(self, row: Mapping[str, Any], agent: str) -> str:
        reference = row.get("agent_ref")
        named = reference.get("name") if isinstance(reference, Mapping) else None
        agents = [remote.name for remote in self.fleet.of("agent")]
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
            say(
                f"unbroken: the run begins anew: {dropped} rollouts that another one had left on the servers are dropped"
            )
        self._begun = True

    def _drop_unknown(self) -> int:
        """Have the servers drop all rollouts that the ledger does not know; return how many there were."""
        with self.changed:
            own = set(self.ledger.ids())
        left: set[str] = set()
        agents = self.fleet.of("agent")
        for remote in self.fleet.of("agent", "resources"):
            left.update(s.rollout or (s.id if remote in agents else "") for s in remote.sessions())
        gone = sorted(left - own - {""})
        self.fleet.drop(gone)
        return len(gone)

    def _check_epochs(self, fenced: Fenced) -> None:
        """A server with an older epoch than it was given has lost its log, and no other trainer is to blame."""
        for name, status in self.fleet.statuses().items():
            if status.epoch < self.fleet.remotes[name].epoch:
                raise ServerMissing(
                    f"The server {name} came back without its log.",
                    hint="Start the training again: the checkpoint's records are then put in its place.",
                    servers=[name],
                ) from fenced
