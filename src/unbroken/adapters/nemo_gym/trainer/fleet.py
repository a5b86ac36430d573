"""All servers of a run, by name and by role.

Not promised: that a server stays what it was. Roles are asked for once, when the servers are first met.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager

from unbroken.adapters.nemo_gym import keys
from unbroken.adapters.nemo_gym.control import Role, Status
from unbroken.adapters.nemo_gym.trainer import cut
from unbroken.adapters.nemo_gym.trainer.remote import Declined, Remote
from unbroken.engine.saying import say
from unbroken.errors import ConfigError, ServerMissing

LOOK_EVERY = 0.2
"""Seconds between two looks at servers that are restoring themselves, or are not there yet."""


class Fleet:
    """The servers under their names. Nothing is asked before the first method is called.

    Raises ConfigError where an address is none, or httpx is missing.
    """

    def __init__(
        self, servers: Mapping[str, str], *, token: str | None, timeout: float, patience: float
    ) -> None:
        if not servers:
            raise ConfigError("There are no servers.", hint='Give them as {"name": "http://host:port"}.')
        given = keys.control_token() if token is None else token
        self.remotes = {
            name: Remote(name, url, token=given, timeout=timeout) for name, url in servers.items()
        }
        self.timeout = timeout
        self.patience = patience
        self._token = given
        self._roles: dict[Role, list[Remote]] = {}

    @property
    def by_role(self) -> Mapping[Role, Sequence[Remote]]:
        """The servers of each role, once they were met."""
        if not self._roles:
            self.statuses()
        return self._roles

    def of(self, *roles: Role) -> list[Remote]:
        """Return the servers of these roles."""
        return [remote for role in roles for remote in self.by_role.get(role, ())]

    def get(self, name: str) -> Remote:
        """Return the server of this name.

        Raises:
            ConfigError: there is none.
        """
        remote = self.remotes.get(name)
        if remote is None:
            raise ConfigError(f"There is no server {name!r}.", hint=f"Known are {', '.join(self.remotes)}.")
        return remote

    @contextmanager
    def reached(self, where: str) -> Generator[Remote]:
        """Give the server of this name, or the one at this address, which need not be of the fleet."""
        known = next((r for r in self.remotes.values() if where in (r.name, r.url)), None)
        if known is not None or "://" not in where:
            yield self.get(where) if known is None else known
            return
        with closing(Remote(where, where, token=self._token, timeout=self.timeout)) as remote:
            yield remote

    def statuses(self) -> dict[str, Status]:
        """Ask every server how it is. Raises as `Remote.status` does, with all names that are missing."""
        found = cut.together(lambda remote: remote.status(), [*self.remotes.values()])
        if not self._roles:
            roles: dict[Role, list[Remote]] = {}
            for name, status in found.items():
                roles.setdefault(status.role, []).append(self.remotes[name])
            self._roles = roles
        return found

    def present(self) -> dict[str, Status]:
        """Wait until all servers answer, and return how they are: a training and its servers may be started together.

        Raises:
            ServerMissing: one does not answer within the patience there is.
        """
        return self._answered(time.monotonic() + self.patience)

    def settled(self) -> dict[str, Status]:
        """Wait until all servers answer and none is restoring itself, and return how they are.

        Raises:
            ServerMissing: one does not answer, or takes longer than the patience there is.
        """
        until = time.monotonic() + self.patience
        while True:
            found = self._answered(until)
            busy = [name for name, status in found.items() if status.phase == "restoring"]
            if not busy:
                return found
            if time.monotonic() >= until:
                raise ServerMissing(
                    f"{', '.join(busy)} did not finish restoring within {self.patience:g} s.", servers=busy
                )
            threading.Event().wait(LOOK_EVERY)

    def _answered(self, until: float) -> dict[str, Status]:
        waiting = False
        while True:
            try:
                return self.statuses()
            except ServerMissing as error:
                if isinstance(error, Declined) or time.monotonic() >= until:
                    raise
                if not waiting:
                    waiting = True
                    names = ", ".join(error.servers)
                    say(f"unbroken: waiting for {names}, up to {self.patience:g} s")
            threading.Event().wait(LOOK_EVERY)

    def adopt(self, run: str) -> None:
        """Become the coordinator of all servers."""
        cut.together(lambda remote: remote.adopt(run), [*self.remotes.values()])

    def release(self) -> None:
        """Open all servers."""
        cut.release(self.by_role)

    def drop(self, rollouts: Iterable[str]) -> None:
        """Have nothing kept of these rollouts, by agents and resources servers."""
        gone = list(rollouts)
        if gone:
            cut.together(lambda remote: remote.drop(gone), self.of("agent", "resources"))

    def close(self) -> None:
        for remote in self.remotes.values():
            remote.close()
