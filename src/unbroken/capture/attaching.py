"""What the capture of an environment needs: found out before training, put in place once, and left there.

Recorders stay in place between two `learn()` calls: the second may go on in the middle of an episode, which
can only be replayed if its beginning was recorded. They are transparent, copy as the methods they stand for
and end with the process.
"""

from __future__ import annotations

import weakref
from typing import Any

from unbroken.capture.environments import Attachment, How, Verdict, attach, chain, known
from unbroken.capture.probe import probe
from unbroken.errors import NotCapturable
from unbroken.state.nodes import class_name

_attached: weakref.WeakKeyDictionary[Any, Attachment] = weakref.WeakKeyDictionary()
_watched: weakref.WeakKeyDictionary[Any, Attachment] = weakref.WeakKeyDictionary()
"""By the environment inside all wrappers, where something was put in place on it: a second recorder, of a second
chain of wrappers around it, would not have seen what the first one has."""


def kind_of(env: Any) -> str:
    """Return what one verdict holds for: the classes of the wrappers and of the environment inside."""
    return "/".join(class_name(type(layer)) for layer in chain(env))


def name_of(env: Any) -> str:
    """Return how people call an environment: by its id, else by its class."""
    spec = getattr(env, "spec", None)
    return str(spec.id) if spec is not None else type(env.unwrapped).__qualname__


def seed_of(env: Any) -> int | None:
    """Return the seed that one environment was last reset with, None if it has none."""
    seed = vars(env.unwrapped).get("_np_random_seed")
    return seed if isinstance(seed, int) and seed >= 0 else None


def attach_once(env: Any, verdict: Verdict | None = None) -> Verdict:
    """Put in place what `env` needs, if that was not done before, and return the verdict on it.

    What is known of a family by name stands above a verdict from elsewhere. Raises NotCapturable.
    """
    *_, base = chain(env)
    found = _attached.get(env) or _watched.get(base)
    if found is None:
        try:
            found = attach(env, verdict=known(env) or verdict)
        except Exception as error:
            raise NotCapturable(
                f"{type(env.unwrapped).__qualname__} cannot be prepared for saving:"
                f" {type(error).__name__}: {error}.",
                hint="Register a capturer for it with register_env_capturer.",
            ) from error
        if found.verdict.how is not How.STRUCTURAL:
            _watched[base] = found
    _attached[env] = found
    return found.verdict


def detach(env: Any) -> None:
    """Leave an environment as it was found."""
    attachment = _attached.pop(env, None)
    _watched.pop(list(chain(env))[-1], None)
    if attachment is not None:
        attachment.detach()


def verdict_on(env: Any) -> Verdict:
    """Return what a restore of `env` will give. An environment of an unknown family is put to the trial."""
    if env in _attached:
        return _attached[env].verdict
    return probe(env)
