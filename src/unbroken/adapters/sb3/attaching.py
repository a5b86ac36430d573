"""What the capture of an environment needs: found out before training, put in place once, and left there.

SB3 resets an environment before any callback hears of it. Where an environment is an object of the user's
own class, without a `spec` to build another one from, copies of the live one, taken before its first step,
stand for new ones in the trial; recording alone would not have seen the first reset.

Recorders stay in place between two `learn()` calls: the second may go on in the middle of an episode, which
can only be replayed if its beginning was recorded. They are transparent, copy as the methods they stand for
and end with the process.
"""

from __future__ import annotations

import copy
import weakref
from functools import partial
from typing import Any

from unbroken.capture.environments import Attachment, Verdict, attach, chain, known
from unbroken.capture.probe import probe, probe_factory
from unbroken.errors import NotCapturable
from unbroken.state.nodes import class_name
from unbroken.types import Fidelity

_attached: weakref.WeakKeyDictionary[Any, Attachment] = weakref.WeakKeyDictionary()


def kind_of(env: Any) -> str:
    """Return what one verdict holds for: the classes of the wrappers and of the environment inside."""
    return "/".join(class_name(type(layer)) for layer in chain(env))


def name_of(env: Any) -> str:
    """Return how people call an environment: by its id, else by its class."""
    spec = getattr(env, "spec", None)
    return str(spec.id) if spec is not None else type(env.unwrapped).__qualname__


def attach_once(env: Any, verdict: Verdict | None = None) -> Verdict:
    """Put in place what `env` needs, if that was not done before, and return the verdict on it.

    What is known of a family by name stands above a verdict from elsewhere. Raises NotCapturable.
    """
    found = _attached.get(env)
    if found is None:
        try:
            found = _attached[env] = attach(env, verdict=known(env) or verdict)
        except Exception as error:
            raise NotCapturable(
                f"{type(env.unwrapped).__qualname__} cannot be prepared for saving:"
                f" {type(error).__name__}: {error}.",
                hint="A twin of it is built for that; make sure that it can be built a second time.",
            ) from error
    return found.verdict


def verdict_on(env: Any) -> Verdict:
    """Return what a restore of `env` will give. For an unknown family that takes seconds."""
    if env in _attached:
        return _attached[env].verdict
    base = list(chain(env))[-1]
    if known(env) is None and getattr(base, "spec", None) is None:
        for layer in chain(env):  # Monitor holds a file and cannot be copied; what is below it may be
            found = _by_copies(layer)
            if found is not None and found.fidelity is Fidelity.EXACT:
                return found
    return probe(env)


def _by_copies(env: Any) -> Verdict | None:
    """Put copies of a live environment to the trial; None if it cannot be copied."""
    try:
        prototype = copy.deepcopy(env)
        return probe_factory(partial(copy.deepcopy, prototype))
    except Exception:  # noqa: BLE001 - whatever copying or pickling foreign objects raises: then it is not tried
        return None
