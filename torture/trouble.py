"""A training that goes on while its store fails: what each kind of fault that returns does to it.

Every error must be one of ours. What failed once must work the next time, in the same process; what fails for
ever must leave what was promised before as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from torture.life import Life, Promises
from torture.recovery import Wrong
from unbroken.errors import CorruptObject, UnbrokenError
from unbroken.store.base import ByteStore
from unbroken.testing.faulty_store import Stopped

FIRST = 7
"""Steps that a life in trouble saves, in `SAVES` saves."""
SAVES = 2


@dataclass(slots=True)
class Trouble:
    """What happened to a process whose store has failed."""

    errors: list[UnbrokenError] = field(default_factory=list[UnbrokenError])
    last_saved: bool = False
    """Whether its last save was acknowledged."""
    stopped: bool = False


def endure(
    store: ByteStore,
    promises: Promises,
    *,
    number: int = 3,
    first: int = FIRST,
    clock: Callable[[], float] = lambda: 1.7e9,
    before_last: Callable[[], None] = lambda: None,
) -> Trouble:
    """Live through it: start (again, if the first start fails), save, retain, prune, save, end.

    `before_last` is called before the last save: what had failed until there must not fail that one.
    """
    trouble = Trouble()
    life: Life | None = None

    def tried(action: Callable[[], None]) -> bool:
        try:
            action()
        except UnbrokenError as error:
            trouble.errors.append(error)
            return False
        return True

    def start() -> None:
        nonlocal life
        life = Life(store, promises, number, clock=clock)

    try:
        if not tried(start):
            tried(start)
        if life is None:
            before_last()
            if not tried(start):
                return trouble
        assert life is not None
        here = life
        if not tried(here.begin):
            tried(here.begin)
        for step in range(first, first + SAVES):
            tried(partial(here.save, step))
            tried(here.retain)
        tried(here.prune)
        before_last()
        if not here.is_born:
            tried(here.begin)
        trouble.last_saved = tried(lambda: here.save(first + SAVES))
        if not trouble.last_saved and isinstance(trouble.errors[-1], CorruptObject):
            # What was read wrongly before is taken for damage, and told: the save after it writes all anew.
            trouble.last_saved = tried(lambda: here.save(first + SAVES + 1))
        tried(here.retain)
        tried(here.end)
    except Stopped:
        trouble.stopped = True
    finally:
        if life is not None:
            _let_go(life)
    return trouble


def _let_go(life: Life) -> None:
    """Give the lock back, as the system does it for a process that is gone."""
    try:
        life.writer.close()
    except (UnbrokenError, Stopped):
        pass


def demand_that_it_went_on(trouble: Trouble, what: str) -> None:
    """Demand of a fault that was over before the last save that this one came out."""
    if not trouble.last_saved:
        raise Wrong(f"after {what} no save came out any more: {trouble.errors[-1]}") from trouble.errors[-1]
