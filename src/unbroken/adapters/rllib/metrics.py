"""Stopwatches among RLlib's metrics: those that run belong to threads of this process.

The thread of an asynchronous learner always has one running while it waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unbroken.capture.class_rule import ClassRule
from unbroken.state.nodes import Dict, Value

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

_RUNNING = "_start_times"


class StatsCaptor:
    """Captor of one metric: everything but its running stopwatches."""

    def attributes(self, obj: Any) -> frozenset[str]:
        return frozenset(vars(obj)) - {_RUNNING}

    def capture(self, obj: Any, walk: Walk) -> dict[str, Value]:
        return {"stopwatches": Dict(v={})}  # none, and yet something to plan from

    def plan(self, extra: dict[str, Value], obj: Any, graft: Graft) -> None:
        graft.write(_begin, obj)


def _begin(stats: Any) -> None:
    vars(stats).setdefault(_RUNNING, {})  # one that the program did not have yet is built without


stats_rule = ClassRule(StatsCaptor(), "ray.rllib.utils.metrics.stats.base:StatsBase")
