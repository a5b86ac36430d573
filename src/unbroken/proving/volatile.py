"""The leaves that a proof leaves out: wall-clock times, in a closed list that is printed.

Each is named by the end of its place, as narrowly as it stands in the state: a leaf that is merely
called `t` (an environment's own clock) is compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VolatileLeaf:
    """Places that match `pattern` at their end hold wall-clock time, for the reason given."""

    pattern: str
    reason: str

    def __str__(self) -> str:
        return f"{self.pattern}: {self.reason}"


VOLATILE = (
    VolatileLeaf(r"/(ep_info_buffer|ep_success_buffer)/\d+/t", "wall time of an episode (SB3)"),
    VolatileLeaf(r"/episode/t", "wall time of an episode, in a step's info (Monitor)"),
    VolatileLeaf(r"/<?(episode_times|t_start)>?", "wall times of episodes, and their start (Monitor)"),
    VolatileLeaf(r"/(episode_start_times?|time_queue)", "wall times of episodes (RecordEpisodeStatistics)"),
    VolatileLeaf(r"^/model/start_time", "when learn() began (SB3)"),
    VolatileLeaf(r"/time~1(fps|time_elapsed)", "the logger's own speed and time"),
)


def is_volatile(place: str) -> bool:
    """Return whether a place is on the list, or below one that is."""
    return _ANY.search(f"/{place}") is not None


_ANY = re.compile("(?:" + "|".join(leaf.pattern for leaf in VOLATILE) + r")(?:/|$)")
