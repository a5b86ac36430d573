"""Makes an export of a checkpoint: what of it other programs can use, and a list of what is left behind.

Whole components are read, and no pickled part of them is opened.
"""

from __future__ import annotations

from shlex import quote

import msgspec

from unbroken.adapters.neutral.directory import Contents
from unbroken.errors import ConfigError
from unbroken.format.meta import Meta
from unbroken.format.neutral import Left, Neutral, Source, Space
from unbroken.format.records import Commit
from unbroken.inspection.neutral.acting import ways_of
from unbroken.inspection.neutral.buffers import COMPONENT, buffers_of
from unbroken.inspection.neutral.cursor import Checkpoint
from unbroken.inspection.neutral.networks import POLICY, TARGETS, networks_of
from unbroken.inspection.neutral.normalizers import FILE, statistics_of
from unbroken.inspection.neutral.spaces import space_of
from unbroken.repo.repository import Repository
from unbroken.state.parts import ranks_in, split_name, view
from unbroken.state.snapshot import Snapshot

_UNREAD = frozenset({"rng_states", "optimizer_states", "rollout_buffer", "logger", "data_loaders", "gym"})
"""Components in which nothing is looked for."""
_FRAMEWORKS = {
    "stable_baselines3": "stable_baselines3",
    "sb3_contrib": "stable_baselines3",
    "ray": "ray.rllib",
    "lightning": "lightning",
    "pytorch_lightning": "lightning",
}
_LEFT = {
    "optimizer_states": ("the optimizer's moments", "every framework groups parameters in another way"),
    "rng_states": ("random generators", "another program draws other numbers in another order"),
    "env_states": ("the state of the environments", "an episode goes on only in the program that began it"),
    "rollout_buffer": ("the rollout in progress", "it belongs to the policy of one iteration"),
    "data_loaders": ("the place in the data", "it belongs to the framework's loader"),
    "logger": ("what is logged next", "it belongs to the framework"),
    "callbacks": ("callbacks", "they belong to the framework"),
    "training_state": (
        "counters, schedules and settings",
        "each framework keeps its own; the step is in the document",
    ),
    "learners": ("the learner's settings", "they belong to the framework"),
    "env_runners": ("the environments and their connectors", "they belong to the framework"),
    "metrics": ("metrics", "they belong to the framework"),
    "gym": ("sessions of servers", "`unbroken gym export` writes them"),
}


def contents_of(repository: Repository, commit: Commit, run: str, *, rank: int = 0) -> Contents:
    """Return what an export of a checkpoint holds, in memory.

    Raises:
        ConfigError: it holds neither a network, nor statistics, nor a buffer, or only parts of a network.
        CorruptObject: a part of it is damaged.
    """
    names = {entry.component for entry in repository.manifest(commit).documents.values()}
    wanted = sorted(
        name for name in names if split_name(name)[1] in (None, rank) and split_name(name)[0] not in _UNREAD
    )
    snapshot = view(repository.load(commit, wanted), rank)
    contents = contents_of_snapshot(snapshot, commit, repository.meta(commit), run)
    left = [*contents.document.left, *_left(names, rank)]
    contents.document = msgspec.structs.replace(contents.document, left=left)
    return contents


def contents_of_snapshot(snapshot: Snapshot, commit: Commit, meta: Meta, run: str) -> Contents:
    """Return what an export of a loaded checkpoint holds."""
    checkpoint = Checkpoint(snapshot)
    networks = networks_of(checkpoint)
    statistics = statistics_of(checkpoint)
    buffers, left = buffers_of(checkpoint)
    if not networks and not statistics and not buffers:
        raise ConfigError(
            f"The checkpoint of step {commit.step} holds no network, no running statistics and no replay buffer.",
            hint=f"Export one of its components: unbroken export {quote(run)} --component NAME --to FILE.json",
        )
    framework, algorithm = _framework(checkpoint)
    observations, actions = _spaces(checkpoint)
    through = {
        one.record.key: one.record.name
        for one in statistics
        if one.record.role == "observation"
        and one.record.active
        and one.record.place.startswith("model/env/")
    }
    ways = ways_of(checkpoint, networks, observations, actions, through)
    contents = Contents(
        Neutral(
            source=Source(
                run=run,
                step=commit.step,
                segment=commit.segment,
                framework=framework,
                algorithm=algorithm,
                written=commit.time,
                versions=dict(meta.versions),
            ),
            observation_space=observations,
            action_space=actions,
            networks=[found.network for found in networks],
            act=ways.act,
            value=ways.value,
            why_no_act=ways.why,
            normalizers=[one.record for one in statistics],
            replay=[held.record for held in buffers],
            left=left,
        )
    )
    for found in networks:
        contents.weights[found.network.file] = found.bits
    if statistics:
        contents.weights[FILE] = {name: bits for one in statistics for name, bits in one.bits.items()}
    for held in buffers:
        contents.columns.update(held.columns)
    return contents


def _framework(checkpoint: Checkpoint) -> tuple[str, str]:
    """Return which package trained, and the class of its algorithm."""
    for place in ("model", "algorithm", "learner", "trainer"):
        at = checkpoint.root(place)
        package = _FRAMEWORKS.get(at.cls.partition(".")[0])
        if package is not None:
            return package, at.cls
    for at in checkpoint.roots():
        package = _FRAMEWORKS.get(at.cls.partition(".")[0])
        if package is not None:
            return package, ""
    return "", ""


def _spaces(checkpoint: Checkpoint) -> tuple[Space | None, Space | None]:
    """Return the spaces of observations and of actions of whatever says both, the policy and the model first."""
    firsts = [checkpoint.root(place) for place in ("model", "learner/_module/_rl_modules/default_policy")]
    for at in [*firsts, *checkpoint.roots(), *checkpoint.objects("env_states")]:
        found = [space_of(at.attr(name)) for name in ("observation_space", "action_space")]
        if all(found):
            return found[0], found[1]
    return None, None


def _left(names: set[str], rank: int) -> list[Left]:
    """Return what a checkpoint holds beside what is exported."""
    left: list[Left] = []
    own = {split_name(name)[0] for name in names if split_name(name)[1] in (None, rank)}
    for name in sorted(own - {POLICY, TARGETS, COMPONENT}):
        what, why = _LEFT.get(name, (name, "no other program knows what it means"))
        left.append(Left(what=what, why=why))
    others = [other for other in ranks_in(names) if other != rank]
    if others:
        left.append(
            Left(
                what=f"what ranks {', '.join(map(str, others))} have for themselves",
                why="one rank is exported",
            )
        )
    return left
