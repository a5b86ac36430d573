"""What becomes of each thing that a person changed in an SB3 script between two starts.

Refused: another network, space, environment, number of environments or algorithm. Taken from the script
and reported: numbers and functions (learning rate, gamma, schedules, total steps) and the arguments of
environments. Kept as the script built it: more or fewer callbacks, outputs of the logger. What training
itself changes, and all that an environment draws at its start, comes from the checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection

from unbroken.adapters.sb3.position import STEP, Position
from unbroken.adapters.sb3.wording import COUNTS, NETWORK, SCHEDULES, SPACES
from unbroken.capture.source import ENVIRONMENTS, environment_verdict
from unbroken.engine.changes import Change, Verdict, usual_verdict

ROLLOUT_LENGTHS = ("model/n_steps", "model/train_freq/0")
"""Settings that a rollout in progress depends on."""


def judge(change: Change, settings: frozenset[str]) -> Verdict:
    """Return the verdict on one change; `settings` are arguments of the environments' constructors."""
    keys = change.place.split("/")
    if keys[0] in ("position", "outputs", "generators") or change.component == "rng_states":
        return Verdict.SAVED
    if keys[0] == "environments" or keys[-1] in COUNTS or not NETWORK.isdisjoint(keys):
        return Verdict.ERROR
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
    if position.kind != STEP or not position.steps:
        return []
    done = (
        f"the checkpoint lies inside a rollout, of which {position.steps:,} steps are done."
        " Go on with the former value; it may change at a checkpoint between two rollouts,"
        " and a save_freq of a whole rollout puts them there."
    )
    return [(place, done) for place in ROLLOUT_LENGTHS if place in keep]
