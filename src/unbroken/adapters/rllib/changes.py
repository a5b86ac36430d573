"""What becomes of each thing that a person changed in an RLlib script between two starts, and how it is told.

Refused: another environment, network, algorithm, or number of env runners, environments or learners. Taken
from the script and reported: learning rate, gamma, batch sizes and every other setting. Callbacks that only
one start has begin fresh, or are left out. What training itself changes comes from the checkpoint.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from unbroken.capture.source import ENVIRONMENTS, environment_verdict
from unbroken.engine.changes import Change, Verdict, usual_verdict
from unbroken.engine.wording import CAUSE, CONSEQUENCE, Words
from unbroken.state.nodes import unescape

CONFIG: Final = "config"
COUNTS: Final = frozenset(
    {"num_env_runners", "num_envs_per_env_runner", "num_learners", "evaluation_num_env_runners"}
)
PASSABLE: Final = frozenset({"num_env_runners", "num_learners"})
"""Counts that `allow_changed` lets pass."""
PROCESSES: Final = "<processes>"
"""Under which key a state holds actors, each by its index."""
_IDENTITY: Final = frozenset(
    {"algo_class", "env", "gym_env_vectorize_mode", "model_config", "_model_config", "policies", "rl_module_spec",
     "replay_buffer_config", "learner_class", "env_runner_cls"}
)  # fmt: skip
_SPACES: Final = frozenset(
    {"observation_space", "action_space", "single_observation_space", "single_action_space"}
)


def judge(change: Change, settings: frozenset[str]) -> Verdict:
    """Return the verdict on one change; `settings` are arguments of the environments' constructors."""
    keys = change.place.split("/")
    if keys[0] == CONFIG:
        return Verdict.ERROR if keys[-1] in COUNTS or keys[-1] in _IDENTITY else Verdict.NEW_VALUE
    if keys[0] in ("generators", "progress", "dropped") or "generators" in keys:
        return Verdict.SAVED
    if PROCESSES in keys[-2:-1]:
        return Verdict.SAVED  # one more or one less: how many there are is judged by its setting
    if not _SPACES.isdisjoint(keys):
        return Verdict.SAVED if any(key.startswith("_np_random") for key in keys) else Verdict.ERROR
    if change.component == ENVIRONMENTS or "envs" in keys:
        return environment_verdict(change, settings)
    if any(key.endswith("callbacks") for key in keys) and (change.birth is None or change.now is None):
        return Verdict.FRESH
    if "metrics" in keys or keys[0] in ("algorithm", "replay_buffer"):
        return Verdict.SAVED
    if "state" in keys and any("optimizer" in key for key in keys[:-1]):
        return Verdict.SAVED
    if keys[-1] == "_seed":
        return Verdict.SAVED
    return usual_verdict(change)


def reword(place: str, words: Words) -> Words:
    """Return the words of an RLlib user on what stands at a place."""
    keys = [unescape(key) for key in place.split("/")]
    last = keys[-1]
    if keys[0] == CONFIG and len(keys) == 2:
        # None at all is another thing: what would be in them is in the process of the Algorithm.
        words = replace(words, passable=last in PASSABLE and "0" not in (words.before, words.after))
        effect = "has no effect on a run that goes on" if last == "seed" else words.effect
        subject = "algorithm" if last == "algo_class" else last
        return replace(words, subject=subject, rank=CAUSE, effect=effect)
    if last in COUNTS:
        return replace(words, subject=last, rank=CAUSE)
    if "_optimizer_lr_schedules" in keys or ("param_groups" in keys and last in ("lr", "initial_lr")):
        return replace(words, subject="lr")
    if "connectors" in keys and len(keys) == keys.index("connectors") + 3:
        return replace(words, subject=last)  # a connector keeps what the config gives it
    if not _SPACES.isdisjoint(keys) or "spaces" in keys:
        return replace(words, rank=CONSEQUENCE, alike="parts of spaces that differ")
    if PROCESSES in keys:
        at = keys.index(PROCESSES)
        who = " ".join([keys[0].removesuffix("s"), *keys[at + 1 :][:1]])
        return replace(words, subject=" ".join([who, "/".join(keys[at + 2 :])]).strip())
    if "_modules" in keys or words.alike:
        return replace(words, rank=CONSEQUENCE, alike=words.alike or "parts of the network that differ")
    return words
