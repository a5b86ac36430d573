"""What people call the things in an SB3 script, by the place at which they stand in its state.

Only words: what becomes of a change is decided in `changes`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from unbroken.engine.wording import CAUSE, CONSEQUENCE, Words
from unbroken.state.nodes import unescape

SCHEDULES: Final = frozenset({"learning_rate", "clip_range", "clip_range_vf", "value_schedule"})
SPACES: Final = frozenset({"observation_space", "action_space"})
COUNTS: Final = frozenset({"num_envs", "n_envs"})
NETWORK: Final = frozenset(
    {"net_arch", "activation_fn", "optimizer_class", "features_extractor_class", "ortho_init", "use_sde"}
)
"""Arguments that decide which tensors there are."""
_OF_BUFFERS: Final = frozenset({"rollout_buffer", "replay_buffer"})
_SAYS_MOST: Final = ("n", "_shape", "nvec", "high_repr", "low_repr")
"""Of a space, what tells best how it differs from another."""

ENVIRONMENT: Final = "environment"


def reword(place: str, words: Words) -> Words:
    """Return the words of an SB3 user on what stands at a place."""
    keys = [unescape(key) for key in place.split("/")]
    top, last = keys[0], keys[-1]
    if top == "callbacks" and len(keys) == 2:
        return replace(words, subject=f"callback {last}", detail=_there(words))
    if top == "callbacks" and len(keys) > 2:
        return replace(words, subject=f"callback {keys[1]} {'/'.join(keys[2:])}")
    if top == "environments":
        subject = f"{ENVIRONMENT}s" if words.detail else ENVIRONMENT
        return replace(words, subject=subject, rank=CAUSE, detail=_unquoted(words))
    if top != "model":
        return words
    if len(keys) == 1:
        return replace(words, subject="algorithm", rank=CAUSE)
    if place == "model/_total_timesteps":
        return replace(
            words, subject="learn()", detail=f"{_count(words.before)} -> {_count(words.after)} steps"
        )
    if place == "model/seed":
        return replace(words, subject="seed", effect="has no effect on a run that goes on")
    if last in COUNTS or (keys[1] == "env" and last == "envs"):
        return replace(words, subject="n_envs", rank=CAUSE, passable=keys[1] != "callbacks")
    network = next((key for key in keys if key in NETWORK), "")
    if network:
        return replace(words, subject=network, rank=CAUSE)
    space = next((key for key in keys if key in SPACES), "")
    if space:
        order = _SAYS_MOST.index(last) if last in _SAYS_MOST else len(_SAYS_MOST)
        detail = (
            f"{last.removesuffix('_repr')} {_unquoted(words)}" if last.endswith("_repr") else words.detail
        )
        return replace(words, subject=space, rank=CONSEQUENCE, order=(order, *words.order), detail=detail)
    if keys[1] == "env":
        return _of_environment(keys, words)
    setting = _setting(keys)
    if setting:
        return replace(words, subject=setting)
    if keys[1] == "policy" and ("_modules" in keys or words.alike):
        subject = words.subject.removeprefix("model/")
        alike = words.alike or "parts of the network that differ"
        return replace(words, subject=subject, rank=CONSEQUENCE, alike=alike)
    if "param_groups" in keys or keys[1] in _OF_BUFFERS:
        return replace(words, subject=words.subject.removeprefix("model/"), rank=CONSEQUENCE)
    return replace(words, subject=words.subject.removeprefix("model/"))


def _setting(keys: list[str]) -> str:
    """Return the argument of the algorithm's constructor that what stands here comes from."""
    if any("optimizer" in key for key in keys) and keys[-1] in ("lr", "initial_lr"):
        return "learning_rate"
    if "lr_schedule" in keys:
        return "learning_rate"
    named = next((key for key in keys if key in SCHEDULES or key.endswith("_schedule")), "")
    if named:
        return named
    if len(keys) == 3 and keys[1] in _OF_BUFFERS:
        return keys[2]
    return keys[1] if len(keys) == 2 or (len(keys) == 3 and keys[1] == "train_freq") else ""


def _of_environment(keys: list[str], words: Words) -> Words:
    if not words.after and words.detail:  # what a plan found
        return replace(words, subject=f"{ENVIRONMENT} wrappers", rank=CAUSE)
    if keys[-1] in ("env", "venv"):
        innermost = "envs" in keys and words.before.endswith("Env")
        subject = ENVIRONMENT if innermost else f"{ENVIRONMENT} wrappers"
        return replace(words, subject=subject, rank=CAUSE)
    return replace(words, subject=f"{ENVIRONMENT} {keys[-1].lstrip('_')}")


def _there(words: Words) -> str:
    return words.detail if not words.detail.startswith("is new") else "is new"


def _unquoted(words: Words) -> str:
    return words.detail or f"{words.before.strip(_QUOTES)} -> {words.after.strip(_QUOTES)}"


_QUOTES: Final = "'\""


def _count(number: str) -> str:
    return f"{int(number):,}" if number.isdecimal() else number
