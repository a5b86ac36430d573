"""The leaves that hold wall-clock time: one closed list, for everybody who compares two states.

Each is named as narrowly as it stands in a state: by the class that it is an attribute of, by what else an
object of that class has, or by the keys of the dictionaries that it is an entry of. A leaf that is merely
called `t_start`, or `t`, is compared. A derived class may have been made anywhere: in a function, or in a
program that is not here.

Not promised: attributes of a class derived from Lightning's or RLlib's that is not found under its name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from unbroken.engine.changes import within
from unbroken.state.diff import LeafDifference
from unbroken.state.nodes import Dict, Object, class_name, escape
from unbroken.state.places import everything
from unbroken.state.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Attribute:
    """What stands at `path` below an object of class `owner`, or of a class derived from it.

    Where `path` begins with a captor's key (`<file>`), that key tells: no object has it but by our captor.
    """

    owner: str
    path: str
    reason: str
    beside: frozenset[str] = frozenset()
    """What an object has beside it if it is of a class that nobody finds by name, yet derived from `owner`."""

    def __str__(self) -> str:
        return f"{self.owner.partition(':')[2]}/{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a plain dictionary whose place ends as `pattern` says, if it also has the keys `beside`."""

    pattern: str
    reason: str
    beside: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.pattern}: {self.reason}"


_MONITOR = "stable_baselines3.common.monitor:Monitor"
_VEC_MONITOR = "stable_baselines3.common.vec_env.vec_monitor:VecMonitor"
_ALGORITHM = "stable_baselines3.common.base_class:BaseAlgorithm"
_EVALUATION = "stable_baselines3.common.callbacks:EvalCallback"
_STATISTICS = "gymnasium.wrappers.common:RecordEpisodeStatistics"
_VECTOR_STATISTICS = "gymnasium.wrappers.vector.common:RecordEpisodeStatistics"
_TIMER = "lightning.pytorch.callbacks.timer:Timer"
_MODEL_CHECKPOINT = "lightning.pytorch.callbacks.model_checkpoint:ModelCheckpoint"
_EPISODE = frozenset({"r", "l"})
_OF_MONITOR = frozenset({"episode_returns", "episode_lengths", "total_steps", "needs_reset", "rewards"})
_OF_STATISTICS = frozenset({"episode_count", "episode_returns", "return_queue", "length_queue"})
_RLLIB_EPISODES = (
    "ray.rllib.env.single_agent_episode:SingleAgentEpisode",
    "ray.rllib.env.multi_agent_episode:MultiAgentEpisode",
)
_SUM = "ray.rllib.utils.metrics.stats.sum:SumStats"
_LIFETIME_SUM = "ray.rllib.utils.metrics.stats.lifetime_sum:LifetimeSumStats"

VOLATILE: tuple[Attribute | Entry, ...] = (
    Attribute(_MONITOR, "episode_times", "wall times of episodes", _OF_MONITOR),
    Attribute(_MONITOR, "<file>/episode_times", "wall times of episodes, in its file"),
    Attribute(_MONITOR, "<file>/t_start", "when its file began"),
    Attribute(_VEC_MONITOR, "<file>/episode_times", "wall times of episodes, in its file"),
    Attribute(_VEC_MONITOR, "<file>/t_start", "when its file began"),
    Attribute(_ALGORITHM, "<elapsed>", "how long training has taken (SB3)"),
    Attribute(
        _EVALUATION, "<best_model>", "a zip with the times of its entries; its score is compared (SB3)"
    ),
    Entry(
        r"/<files>/[^/]+/(?:text|columns)",
        "a log with times in it; a digest of everything else is compared (SB3)",
        frozenset({"text", "columns", "digest"}),
    ),
    Entry(r"^/outputs/tensorboard", "where the first start shows itself (SB3)"),
    Attribute(_STATISTICS, "episode_start_time", "when an episode began"),
    Attribute(_STATISTICS, "time_queue", "wall times of episodes", _OF_STATISTICS),
    Attribute(_VECTOR_STATISTICS, "episode_start_times", "when episodes began"),
    Attribute(_VECTOR_STATISTICS, "time_queue", "wall times of episodes", _OF_STATISTICS),
    Attribute(_TIMER, "<elapsed>", "how long training has taken (Lightning)"),
    Attribute(
        _MODEL_CHECKPOINT, "<place>", "where this start writes its files, and which are there (Lightning)"
    ),
    Entry(r"/ep_info_buffer/\d+/t", "wall time of an episode (SB3)", _EPISODE),
    Entry(r"/episode/t", "wall time of an episode, in a step's info", _EPISODE),
    Entry(r"/time~1(fps|time_elapsed)", "the logger's own speed and time (SB3)"),
    *(Attribute(episode, "_start_time", "when an episode began") for episode in _RLLIB_EPISODES),
    *(
        Attribute(episode, "_last_step_time", "when an episode's last step was")
        for episode in _RLLIB_EPISODES
    ),
    Attribute(_SUM, "_last_throughput_measure_time", "when a throughput was measured"),
    Attribute(_LIFETIME_SUM, "_last_reduce_time", "when a throughput was measured"),
    Attribute(_LIFETIME_SUM, "_last_restore_time", "when a throughput began to be measured"),
    Entry(r"/stats(?:/[^/]+)*/timers", "how long parts of an iteration take (RLlib)"),
    Entry(
        r"/stats(?:/[^/]+)*/(?:[a-z_]+_timer|sample|time_between_sampling|episode_duration_sec_mean)",
        "how long sampling takes (RLlib)",
    ),
    Entry(r"/algorithm/<clocks>/[a-z_]+", "how long training took so far (RLlib)"),
    Entry(
        r"/value/<records>",
        "times of calls, and what goes on beside the training (NeMo Gym); servers compare their own digests",
        frozenset({"protocol", "servers"}),
    ),
    Entry(r"/gym/timestamp", "when it was saved (NeMo Gym)", frozenset({"environment", "resources"})),
    Entry(
        r"/tool_history/\d+/(?:started|seconds|call_id)",
        "when a tool was called, and the name of the call (NeMo Gym)",
        frozenset({"revision", "arguments"}),
    ),
    Entry(r"/connection_state/(?:phase|pid|lineage|epoch|recovery)", "which process serves (NeMo Gym)"),
    Entry(r"/extensions/unbroken(?:/models/[^/]+)?/process", "which process serves (NeMo Gym)"),
    Entry(
        r"/session_states/[^/]+/extensions/unbroken/(?:attempt|bytes)",
        "how often a rollout was begun, and the size of a pickle (NeMo Gym)",
    ),
    Entry(
        r"/tool_history/\d+/(?:arguments|result)(?:/[^/]+)*/_ng_attempt_index",
        "how often a rollout was begun (NeMo Gym)",
    ),
    Entry(r"/context/bytes", "the size of a pickle (NeMo Gym)", frozenset({"$object", "digest"})),
    Entry(r"/extensions/unbroken/rollouts/[^/]+/attempt", "how often a rollout was begun (NeMo Gym)"),
)


def volatile_places(snapshot: Snapshot) -> frozenset[str]:
    """Return every place of a state that holds wall-clock time, in worker processes too."""
    found: set[str] = set()
    paths: dict[str, tuple[str, ...]] = {}
    for at, node in everything(snapshot):
        if isinstance(node, Object):
            if node.c not in paths:
                paths[node.c] = _paths_of(node.c)
            found.update(f"{at}/{path}" for path in paths[node.c])
            found.update(f"{at}/{leaf.path}" for leaf in _BY_WHAT_IS_BESIDE if _is_one(node, leaf))
        elif isinstance(node, Dict) and node.v is not None:
            keys = node.v.keys()
            found.update(place for key in keys if _is_entry(place := f"{at}/{escape(key)}", keys))
    return frozenset(found)


def without_clocks(found: Iterable[LeafDifference], *snapshots: Snapshot) -> list[LeafDifference]:
    """Return the differences between the snapshots that are no matter of wall-clock time."""
    differences = list(found)
    if not differences:
        return []
    places = frozenset[str]().union(*(volatile_places(snapshot) for snapshot in snapshots))
    return [difference for difference in differences if not within(difference.place, places)]


def _is_entry(place: str, keys: Iterable[str]) -> bool:
    if not _LIKELY.search(f"/{place}"):
        return False
    held = frozenset(keys)
    return any(entry.beside <= held and pattern.search(f"/{place}") for entry, pattern in _ENTRIES)


def _is_one(node: Object, leaf: Attribute) -> bool:
    """Whether the leaf stands below an object, whatever the object's class is called."""
    if not leaf.path.startswith("<"):
        return leaf.path in node.a and leaf.beside <= node.a.keys()
    key, _, inside = leaf.path.partition("/")
    kept = node.x.get(key.strip("<>"), _NOTHING)
    if inside:
        return isinstance(kept, Dict) and kept.v is not None and inside in kept.v
    return kept is not _NOTHING


def _paths_of(name: str) -> tuple[str, ...]:
    bases = {name, *_bases(name)}
    return tuple(leaf.path for leaf in VOLATILE if isinstance(leaf, Attribute) and leaf.owner in bases)


def _bases(name: str) -> list[str]:
    """Return the names of the base classes of a class, if it is loaded; nothing is imported for it."""
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return [class_name(base) for base in found.__mro__] if isinstance(found, type) else []


_NOTHING = Dict()
_BY_WHAT_IS_BESIDE = [
    leaf for leaf in VOLATILE if isinstance(leaf, Attribute) and (leaf.beside or leaf.path.startswith("<"))
]
_ENTRIES = [(leaf, re.compile(leaf.pattern + r"\Z")) for leaf in VOLATILE if isinstance(leaf, Entry)]
_LIKELY = re.compile("(?:" + "|".join(entry.pattern for entry, _ in _ENTRIES) + r")\Z")
