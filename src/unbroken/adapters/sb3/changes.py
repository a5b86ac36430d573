"""What becomes of each thing that a person changed in an SB3 script between two starts.

Refused: another network, space, environment, number of environments or algorithm. Taken from the script
and reported: numbers and functions (learning rate, gamma, schedules, total steps) and the arguments of
environments. Kept as the script built it: more or fewer callbacks, outputs of the logger. What training
itself changes, and all that an environment draws at its start, comes from the checkpoint. Another number
of environments changes the shape of much; only the number itself is judged.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from unbroken.adapters.sb3.position import ROLLOUT, STEP, Position
from unbroken.adapters.sb3.resizing import COUNT, ENV
from unbroken.adapters.sb3.wording import COUNTS, NETWORK, SCHEDULES, SPACES
from unbroken.capture.source import ENVIRONMENTS, environment_verdict
from unbroken.engine.changes import BirthLeaf, Change, Verdict, usual_verdict

ROLLOUT_LENGTHS = ("model/n_steps", "model/train_freq/0")
"""Settings that a rollout in progress depends on."""


def judge(change: Change, settings: frozenset[str]) -> Verdict:
    """Return the verdict on one change; `settings` are arguments of the environments' constructors."""
    keys = change.place.split("/")
    if keys[0] in ("position", "outputs", "generators") or change.component == "rng_states":
        return Verdict.SAVED
    if keys[0] == "environments" or keys[-1] in COUNTS or not NETWORK.isdisjoint(keys):
        return Verdict.ERROR
    if change.place == "model/buffer_size":
        return Verdict.ERROR  # the cause of many tables of another shape
    if keys[0] == "model" and keys[1:2] and _is_of_the_loop(keys[1]):
        return Verdict.SAVED
    if "state" in keys and any("optimizer" in key for key in keys[:-1]):
        return Verdict.SAVED  # moments, and none before the first update
    if not SPACES.isdisjoint(keys):
        return Verdict.SAVED if keys[-1].startswith("_np_random") or "_np_random" in keys else Verdict.ERROR
    if change.component == ENVIRONMENTS:
        return environment_verdict(change, settings)
    if change.component == "logger":
        return Verdict.FRESH if change.untouched else Verdict.SAVED
    if keys[0] == "callbacks" and (change.birth is None or change.now is None):
        return Verdict.FRESH
    if _is_schedule(keys) or "callable" in _kinds(change) or "action_noise" in keys:
        return Verdict.NEW_VALUE
    if change.component == "rollout_buffer" and change.untouched:
        # Refused by `obstacles` if a rollout is in progress; between two the buffer begins anew.
        return Verdict.NEW_VALUE
    return usual_verdict(change)


def causes(found: Sequence[Change], vector: str) -> list[Change]:
    """Return the changes without those that only follow from another number of environments.

    `vector` is the place of the vector below all wrappers: with another number it is built anew.
    """
    count = next((change for change in found if change.place == COUNT), None)
    if count is None or count.birth is None or count.now is None:
        return list(found)
    before, after = count.birth.text, count.now.text
    return [
        change
        for change in found
        if change is count or not _follows(change, vector, before=before, after=after)
    ]


def _follows(change: Change, vector: str, *, before: str, after: str) -> bool:
    place = change.place
    if place.rpartition("/")[0] == vector:
        return True
    if place == vector and {_class_of(change.birth), _class_of(change.now)} <= _VECTORS:
        return True
    if place == "model/action_noise" or place.startswith("model/action_noise/"):
        return change.kind == "structure" or change.name in COUNTS
    if place.split("/")[1:2] == ["replay_buffer"] and change.name == "buffer_size":
        return True  # what was asked for is `model/buffer_size`; each environment gets its share
    if place.startswith("model/") and change.name in COUNTS:
        return True
    shapes = [
        leaf.shape for leaf in (change.birth, change.now) if leaf is not None and leaf.shape is not None
    ]
    if len(shapes) == 2:
        return any(
            (str(a), str(b)) == (before, after) for a, b in zip(shapes[0][:2], shapes[1][:2], strict=False)
        )
    return place.startswith(f"{ENV}/") and change.kind == "structure"


_VECTORS = frozenset({"DummyVecEnv", "SubprocVecEnv"})


def _class_of(leaf: BirthLeaf | None) -> str:
    return "" if leaf is None else leaf.text.rpartition(":")[2]


def _is_of_the_loop(name: str) -> bool:
    """Whether an attribute of a model is counted or seen while it trains, and no argument of anything."""
    if name in ("_total_timesteps", "_stats_window_size", "_logger"):
        return False
    return name in ("num_timesteps", "exploration_rate") or name.startswith("_")


def _kinds(change: Change) -> set[str]:
    return {leaf.kind for leaf in (change.birth, change.now) if leaf is not None}


def _is_schedule(keys: Collection[str]) -> bool:
    return any(key in SCHEDULES or key.endswith("_schedule") for key in keys)


def obstacles(keep: Collection[str], position: Position) -> list[tuple[str, str]]:
    """Return (place, why) for each kept setting with which the rollout of `position` cannot go on."""
    if position.kind not in (STEP, ROLLOUT) or not position.steps:
        return []
    done = (
        f"the checkpoint lies inside a rollout, of which {position.steps:,} steps are done."
        " Go on with the former value; it may change at a checkpoint between two rollouts,"
        " and a save_freq of a whole rollout puts them there."
    )
    return [(place, done) for place in ROLLOUT_LENGTHS if place in keep]
