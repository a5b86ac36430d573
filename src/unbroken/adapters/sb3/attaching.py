"""What the capture of an environment needs is put in place once and stays.

Recorders go on between two `learn()` calls: the second may go on in the middle of an episode, which can
only be replayed if its beginning was recorded. They are transparent, copy as the methods they stand for
and end with the process.
"""

from __future__ import annotations

import weakref
from typing import Any

from unbroken.capture.environments import Attachment, Verdict, attach

_attached: weakref.WeakKeyDictionary[Any, Attachment] = weakref.WeakKeyDictionary()


def attach_once(env: Any, verdict: Verdict | None = None) -> Verdict:
    """Put in place what `env` needs, if that was not done before, and return the verdict on it."""
    found = _attached.get(env)
    if found is None:
        found = _attached[env] = attach(env, verdict=verdict)
    return found.verdict


def is_attached(env: Any) -> bool:
    """Return whether `attach_once` was called for `env`."""
    return env in _attached
