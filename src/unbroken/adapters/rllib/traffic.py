"""What is under way between the processes of an algorithm that samples and learns at the same time.

For a save it is brought to rest: no more samples are asked for, what is asked for already is fetched, and the
learners work off what they have. The run that goes on gets what was fetched in its next iteration: a save costs
it the wait and nothing else. A checkpoint holds none of it: what goes on from there lacks these samples,
which are counted.

Not promised: that two runs are equal, interrupted or not. These algorithms take whatever comes first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from unbroken.adapters.rllib import agent
from unbroken.adapters.rllib.actors import LearnerActors
from unbroken.adapters.rllib.inlet import come_to_rest, listen
from unbroken.capture.hooks import Hook
from unbroken.errors import NotCapturable
from unbroken.state.nodes import class_name
from unbroken.state.snapshot import Promise
from unbroken.types import Fidelity

PATIENCE = 60.0
"""Seconds that a save waits for each kind of traffic."""
PROMISE = Promise(
    Fidelity.APPROXIMATE,
    "asynchronous: it samples and learns at the same time, so no two runs are equal, and samples that were under way"
    " at the save are dropped",
)
DROPPED_STEPS = "dropped_steps"
DROPPED_PIECES = "dropped_episode_pieces"
_IMPALA = "ray.rllib.algorithms.impala.impala:IMPALA"
_SAMPLES = "sample_get_state_and_metrics"
_BATCHES = "get_batches"
_SINCE_BROADCAST = "mean_num_training_step_calls_since_last_synch_worker_weights"
_WEIGHTS = "_rl_module_state_after_update"


def is_asynchronous(algorithm: object) -> bool:
    """Whether an Algorithm samples and learns at the same time."""
    return any(class_name(cls) == _IMPALA for cls in type(algorithm).__mro__)


class Traffic:
    """The traffic of one Algorithm.

    `dropped` belongs to the state of the run: what checkpoints that it went on from lacked, and after a halt what
    this one lacks as well.
    """

    def __init__(self, algorithm: Any) -> None:
        self.dropped: dict[str, int] = {DROPPED_STEPS: 0, DROPPED_PIECES: 0}
        self._lost: dict[str, int] | None = None
        """What is dropped for good; unknown before this process has sampled."""
        self._algorithm = algorithm
        self._fetched: list[tuple[int, Any]] = []
        """Samples that wait for the next iteration, each with its runner's index."""
        self._since_broadcast = 0
        self._sampling = Hook(algorithm, "_sample_and_get_connector_states", self._sample, keeper=self)

    def install(self) -> None:
        self._tell_learners(agent.order(listen))
        self._sampling.install()

    def remove(self) -> None:
        self._sampling.remove()

    def halt(self) -> None:
        """Bring everything to rest. Raises NotCapturable where that takes too long."""
        self._fetch_samples()
        self._fetch_batches()
        self._fetch_updates()
        for answer in self._tell_learners(agent.order(come_to_rest, PATIENCE)):
            self._learned(answer.results)
        self._count()

    def remember(self) -> None:
        """Keep what the setup of an Algorithm, which is under way, will set to its beginning after us."""
        self._since_broadcast = int(self._algorithm._counters.get(_SINCE_BROADCAST, 0))

    def _sample(self) -> tuple[Any, ...]:
        if self._lost is None:
            self._lost = {**self.dropped}
        since, self._since_broadcast = self._since_broadcast, 0
        self._algorithm._counters[_SINCE_BROADCAST] += since
        episodes, states, metrics, indices = self._sampling.original()
        fetched, self._fetched = self._fetched, []
        samples = [sample for _, sample in fetched]
        return (
            [*(sample[0] for sample in samples), *episodes],
            [*(sample[1] for sample in samples), *states],
            [*(sample[2] for sample in samples), *metrics],
            {index for index, _ in fetched} | indices,
        )

    def _fetch_samples(self) -> None:
        group = self._algorithm.env_runner_group
        manager = group._worker_manager

        def fetch(seconds: float) -> None:
            self._fetched += group.fetch_ready_async_reqs(tags=_SAMPLES, timeout_seconds=seconds)

        _fetch_all(lambda: manager.num_outstanding_async_reqs(_SAMPLES), fetch, "env runners")

    def _fetch_batches(self) -> None:
        manager = self._algorithm._aggregator_actor_manager
        if manager is None:
            return
        algorithm = self._algorithm

        def fetch(seconds: float) -> None:
            # Ready references only: what these actors were to make of samples stays with them.
            for result in manager.fetch_ready_async_reqs(
                tags=_BATCHES, timeout_seconds=seconds, return_obj_refs=True
            ):
                learner = algorithm._aggregator_actor_to_learner[result.actor_id]
                algorithm._ma_batches_being_built[learner].append(result.get())

        _fetch_all(lambda: manager.num_outstanding_async_reqs(_BATCHES), fetch, "aggregator actors")

    def _fetch_updates(self) -> None:
        group = self._algorithm.learner_group
        if group.is_local:
            return
        manager = group._worker_manager

        def fetch(seconds: float) -> None:
            self._learned(
                group._get_results(manager.fetch_ready_async_reqs(timeout_seconds=seconds)),
            )

        _fetch_all(manager.num_outstanding_async_reqs, fetch, "learners")

    def _learned(self, results: Iterable[Any]) -> None:
        """Count what learners have done. Weights among it go to the env runners at the next broadcast."""
        told = [{key: value for key, value in result.items() if key != _WEIGHTS} for result in results]
        if told:
            self._algorithm.metrics.aggregate(told, key="learners")

    def _count(self) -> None:
        import ray

        held = vars(self._algorithm)  # before the end of its setup it has none of these
        packs, batches_of = (
            held.get("_episode_packs_being_built", []),
            held.get("_ma_batches_being_built", {}),
        )
        waiting = [*packs, *(sample[0] for _, sample in self._fetched)]
        pieces = [piece for episodes in ray.get(waiting) for piece in episodes]
        batches = ray.get([batch for batches in batches_of.values() for batch in batches])
        if self._lost is not None:
            steps = sum(map(len, pieces)) + sum(batch.env_steps() for batch in batches)
            self.dropped[DROPPED_STEPS] = self._lost[DROPPED_STEPS] + steps
            self.dropped[DROPPED_PIECES] = self._lost[DROPPED_PIECES] + len(pieces)

    def _tell_learners(self, order: agent.Order) -> list[agent.Answer]:
        group = self._algorithm.learner_group
        answers = [order(group._learner)] if group.is_local else [*LearnerActors(group).ask(order).values()]
        failed = next((answer for answer in answers if answer.error), None)
        if failed is not None:
            raise NotCapturable(
                f"The learner {failed.index} cannot be brought to rest for a save: {failed.error}.",
                hint="Save less often, or make its batches smaller.",
            )
        return answers


def _fetch_all(outstanding: Callable[[], int], fetch: Callable[[float], None], who: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while outstanding():
        left = deadline - time.monotonic()
        if left <= 0:
            raise NotCapturable(
                f"{outstanding()} requests to the {who} are still unanswered after {PATIENCE:g} s, so this"
                " moment cannot be saved.",
                hint="Find out what they are waiting for; the training itself may go on.",
            )
        fetch(left)
