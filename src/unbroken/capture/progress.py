"""How far the episodes of one environment are, for people: as the wrappers around it count them.

Nothing is restored from this. Not promised: a count where no wrapper that is known by name keeps one.
"""

from __future__ import annotations

from typing import Any

from unbroken.capture.environments import chain
from unbroken.state.nodes import class_name

_LIMIT = "gymnasium.wrappers.common:TimeLimit"
_STATISTICS = "gymnasium.wrappers.common:RecordEpisodeStatistics"
_MONITOR = "stable_baselines3.common.monitor:Monitor"


def progress_of(env: Any) -> dict[str, int]:
    """Return `steps`, those of the episode that is open, and `episodes`, those that have ended; each if it is known.

    >>> import gymnasium
    >>> env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))
    >>> _ = env.reset(seed=0), env.step(0)
    >>> progress_of(env)
    {'steps': 1, 'episodes': 0}
    """
    found: dict[str, Any] = {}
    for layer in chain(env):
        names = {class_name(cls) for cls in type(layer).__mro__}
        has = vars(layer)
        if _MONITOR in names:
            found = {
                "episodes": len(has.get("episode_lengths", ())),
                "steps": len(has.get("rewards", ())),
                **found,
            }
        elif _STATISTICS in names:
            found = {"episodes": has.get("episode_count"), "steps": has.get("episode_lengths"), **found}
        elif _LIMIT in names:
            found = {"steps": has.get("_elapsed_steps"), **found}
    return {name: count for name, count in found.items() if type(count) is int}
