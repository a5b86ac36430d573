"""`RolloutQueue`: prompts in their order, each in a group of rollouts, each trained on once per epoch.

What is counted is what was handed out, never what was generated. The order of an epoch follows from seed and epoch, so
a place in it is a number; groups that were begun and not handed out are named by their rollouts, which are in the ledger.

Not promised: anything where the queue is tracked without its `Gym`, or the other way round; both refuse to go on.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from blake3 import blake3

from unbroken.adapters.nemo_gym.trainer.gym import Gym
from unbroken.adapters.nemo_gym.trainer.ledger import Rollout
from unbroken.errors import ConfigError


class RolloutQueue:
    """Groups of `samples` rollouts for each of `rows`, over `epochs` epochs (None: without an end).

    >>> queue = RolloutQueue(gym, rows, samples=8, ahead=4, epochs=2)  # doctest: +SKIP
    >>> run.track(policy=net, gym=gym, queue=queue)                    # doctest: +SKIP
    >>> for step in run.steps(total):                                  # doctest: +SKIP
    ...     groups = queue.next(16)

    So many groups are under way beyond those that were asked for as `ahead` says. The order is that of `rows` with
    seed None, else another one in each epoch.

    Raises:
        ConfigError: an option cannot be used.
    """

    def __init__(
        self,
        gym: Gym,
        rows: Sequence[Mapping[str, Any]],
        *,
        samples: int = 1,
        ahead: int = 0,
        seed: int | None = 0,
        epochs: int | None = 1,
        agent: str = "",
    ) -> None:
        if not rows or samples < 1 or ahead < 0 or (epochs is not None and epochs < 1):
            raise ConfigError(
                f"{len(rows)} rows, samples={samples}, ahead={ahead}, epochs={epochs} cannot be used.",
                hint="There has to be a row, a sample and an epoch at least.",
            )
        self._of = gym.coordinator
        self._rows = [dict(row) for row in rows]
        self._samples = samples
        self._ahead = ahead
        self._seed = seed
        self._epochs = epochs
        self._agent = agent
        try:
            self._digest = blake3(json.dumps(self._rows, sort_keys=True).encode()).hexdigest()
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"The rows cannot be sent: {error}.", hint="Rows hold what JSON can hold."
            ) from error
        self._first = 0
        self._groups: dict[int, list[str]] = {}
        self._orders: dict[int, list[int]] = {}

    @property
    def left(self) -> int | None:
        """How many groups were not handed out yet; None: without an end."""
        return None if self._epochs is None else max(0, self._total - self._first)

    @property
    def epoch(self) -> int:
        """The epoch of the next group, from 0."""
        return self._first // len(self._rows)

    def next(self, groups: int = 1, *, policy_version: str | int = "") -> list[list[Rollout]]:
        """Return the next groups, complete, in the order of the prompts; fewer only at the very end.

        Interrupted, it has handed out nothing, and may be called again.

        Raises:
            ConfigError: nothing is left, although the loop asks for more.
            ServerMissing, Fenced: the servers are not there, or belong to another trainer.
        """
        if groups < 1:
            raise ConfigError(f"{groups} groups cannot be taken.", hint="Take at least one.")
        if self.left == 0:
            raise ConfigError(
                f"Nothing is left: all {self._first} groups were trained on, and the loop asks for more.",
                hint="Raise epochs, or leave the loop when `left` is 0: `for groups in queue.batches(n)` does.",
            )
        end = self._bounded(self._first + groups)
        for number in range(self._first, self._bounded(end + self._ahead)):
            if number not in self._groups:
                row = self._rows[self._prompt(number)]
                self._groups[number] = self._of.send(
                    [row] * self._samples, agent=self._agent, policy_version=policy_version, owner="queue"
                )
        wanted = [self._groups[number] for number in range(self._first, end)]
        flat = [rollout for group in wanted for rollout in group]
        if not self._of.knows(flat):
            raise ConfigError(
                "The queue waits for rollouts that its Gym does not know.",
                hint="Track both: run.track(gym=gym, queue=queue).",
            )
        self._of.ready()
        self._of.wait(flat)
        found = iter(self._of.hand_out(flat))
        for number in range(self._first, end):
            del self._groups[number]
        self._first = end
        return [[next(found) for _ in group] for group in wanted]

    def batches(self, groups: int = 1, *, policy_version: str | int = "") -> Iterator[list[list[Rollout]]]:
        """Yield what `next` returns until nothing is left."""
        while self.left != 0:
            yield self.next(groups, policy_version=policy_version)

    def capture(self) -> dict[str, Any]:
        """Return where the queue stands."""
        return {
            "first": self._first,
            "groups": {str(number): list(ids) for number, ids in self._groups.items()},
            "seed": self._seed,
            "samples": self._samples,
            "rows": self._digest,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `capture` was called. Nothing is sent before `next` is called.

        Raises:
            ConfigError: it was captured with other rows, another seed or another number of samples.
        """
        if other := self.unlike(state):
            raise ConfigError(f"{other}, so the queue cannot go on from there.", hint="Use the former ones.")
        self._first = int(state["first"])
        self._groups = {int(number): list(ids) for number, ids in state["groups"].items()}

    def unlike(self, state: Mapping[str, Any]) -> str:
        """Return what is other here than where `state` was captured; empty: nothing."""
        mine = {"seed": self._seed, "samples": self._samples, "rows": self._digest}
        return ", ".join(f"other {name}" for name, value in mine.items() if state.get(name) != value)

    @property
    def _total(self) -> int:
        return 0 if self._epochs is None else self._epochs * len(self._rows)

    def _bounded(self, number: int) -> int:
        return number if self._epochs is None else min(number, self._total)

    def _prompt(self, number: int) -> int:
        """Return which row the group of this number is of."""
        epoch, place = divmod(number, len(self._rows))
        if self._seed is None:
            return place
        order = self._orders.get(epoch)
        if order is None:
            order = list(range(len(self._rows)))
            random.Random(f"{self._seed}-{epoch}").shuffle(order)
            self._orders = {e: o for e, o in self._orders.items() if e >= epoch - 1}
            self._orders[epoch] = order
        return order[place]
