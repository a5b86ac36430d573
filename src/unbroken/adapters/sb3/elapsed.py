"""How long a training has taken, over all of its starts: what SB3 logs as `time/time_elapsed` and `time/fps`.

SB3 notes when `learn()` began, and a start that goes on would count from its own beginning, with the steps of
all starts. The time of the checkpoint comes back instead. The time between a kill and the next start does not
count, nor does work that is done again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from unbroken.capture.class_rule import ClassRule
from unbroken.state.nodes import Value

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk


class ElapsedCaptor:
    """Captor of an algorithm: adds the seconds since `learn()` began."""

    def attributes(self, obj: Any) -> None:
        return None

    def capture(self, obj: Any, walk: Walk) -> dict[str, Value]:
        began: int = getattr(obj, "start_time", 0)
        return {"elapsed": (time.time_ns() - began) / 1e9} if walk.contents and began else {}

    def plan(self, extra: dict[str, Value], obj: Any, graft: Graft) -> None:
        elapsed = extra.get("elapsed")
        if not isinstance(elapsed, float) or not 0 <= elapsed < 1e10:
            graft.error("was saved without the time that its training has taken.")
        else:
            graft.write(_begin, obj, elapsed)


def _begin(model: Any, elapsed: float) -> None:
    model.start_time = time.time_ns() - int(elapsed * 1e9)


elapsed_rule = ClassRule(ElapsedCaptor(), "stable_baselines3.common.base_class:BaseAlgorithm")
