"""Where a training function of Ray Train runs: which rank it is, and how it agrees with the others on a save.

torch's process group is used where the trainer has made one; without it Ray's own broadcast, which costs a
message to an actor at each clean point and is therefore asked only where clocks decide about saves. Both wait for
a worker that has stopped, and no longer than `step_timeout`. All else goes through the store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from threading import Thread
from typing import Any

import ray.train

from unbroken.capture.process_group import any_rank, initialized
from unbroken.engine.schedule import Every
from unbroken.engine.world import World
from unbroken.errors import ConfigError, RankMissing

FOLDER = "unbroken"


def context() -> Any:
    """Return what Ray Train tells this worker of itself.

    Raises:
        ConfigError: this is no worker.
    """
    try:
        return ray.train.get_context()
    except RuntimeError as error:
        raise ConfigError(
            "This is no worker of Ray Train: it is called in the training function that a trainer runs.",
            hint="Call it there; outside of Ray Train use unbroken.Run.",
        ) from error


def has_storage() -> bool:
    """Whether Ray keeps what it is given; in local mode (`num_workers=0`) it does not."""
    try:
        context().get_storage()
    except NotImplementedError:
        return False
    return True


def root_in_storage() -> str:
    """Return a directory of this experiment in Ray's own storage.

    Raises:
        ConfigError: there is none, or it is no directory that this machine sees.
    """
    try:
        storage = context().get_storage()
    except NotImplementedError as error:
        raise ConfigError(
            "A trainer in local mode (num_workers=0) has no storage for checkpoints.",
            hint='Say where they go: unbroken.ray_train.start("/data/runs/ppo", …).',
        ) from error
    kind = storage.storage_filesystem.type_name
    if kind != "local":
        raise ConfigError(
            f"Ray's storage is reached by {kind}, whose settings are not known here.",
            hint='Say where checkpoints go by a URL: unbroken.ray_train.start("s3://bucket/runs/ppo", …).',
        )
    return f"{storage.experiment_fs_path.rstrip('/')}/{FOLDER}"


def world(
    every: Every,
    *,
    replicated: Collection[str],
    sync_timeout: float,
    start_timeout: float,
    step_timeout: float,
) -> World:
    """Return the world as this worker sees it. Every worker calls it at the same place."""
    here = context()
    rank, size = int(here.get_world_rank()), int(here.get_world_size())
    agree: Callable[[bool], bool] | None = None
    dist = initialized() if size > 1 else None
    if dist is not None and (dist.get_rank(), dist.get_world_size()) == (rank, size):
        agree = any_rank(dist, timeout=step_timeout)
    elif size > 1 and not _fixed(every):
        agree = in_time(_by_ray, seconds=step_timeout)
    return World(
        rank=rank,
        size=size,
        replicated=replicated,
        sync_timeout=sync_timeout,
        start_timeout=start_timeout,
        agree=agree,
    )


def _fixed(every: Every) -> bool:
    """Whether every rank can tell by itself when a save is due."""
    others = (every.seconds, every.episodes, every.max_loss, every.max_overhead)
    return all(value is None for value in others)


def in_time(ask: Callable[[bool], bool], *, seconds: float) -> Callable[[bool], bool]:
    """Return `ask` with an end to its waiting. Ray's broadcast has none, unless its driver was started with one.

    A question that got no answer is not asked again: Ray would count this worker twice, and take it for the others.

    Raises (the function): RankMissing where the others do not come in time.
    """
    unanswered = False

    def agree(wish: bool) -> bool:  # noqa: FBT001 - the contract of World.agree
        nonlocal unanswered
        if not unanswered:
            answer: Future[bool] = Future()
            # Nothing can be done for a thread that waits, but to let it end with the process.
            Thread(target=_answer, args=(answer, ask, wish), name="unbroken-agree", daemon=True).start()
            if answer in wait([answer], seconds).done:
                return answer.result()
            unanswered = True
        raise RankMissing(
            f"The workers did not meet within {seconds:g} seconds to agree on a save: one of them has stopped, is"
            " slow, or has left its loop.",
            hint="Every worker has to come to the same clean points; allow slow ones more by step_timeout=.",
        )

    return agree


def _answer(answer: Future[bool], ask: Callable[[bool], bool], wish: bool) -> None:  # noqa: FBT001
    try:
        answer.set_result(ask(wish))
    except BaseException as error:  # noqa: BLE001 - raised again where the answer is waited for
        answer.set_exception(error)


def _by_ray(wish: bool) -> bool:  # noqa: FBT001 - the contract of World.agree
    from ray.train.collective import broadcast_from_rank_zero

    return bool(broadcast_from_rank_zero(bool(wish)))
