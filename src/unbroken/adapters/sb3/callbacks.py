"""The tree of callbacks of one training: which of them have state, and how each is named.

A `CallbackList` only holds others and has no name: one callback more, or a progress bar, must not move
the rest. The others are named by class, in order: `EvalCallback`, `EvalCallback#2`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback


def below(root: BaseCallback) -> Iterator[BaseCallback]:
    """Yield `root` and every callback that it leads to, each once, parents first."""
    seen: set[int] = set()
    waiting: list[object] = [root]
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, BaseCallback):
            yield one
            waiting += [value for name, value in vars(one).items() if name != "parent"]
        elif isinstance(one, (list, tuple)):
            waiting += one


def holds(root: BaseCallback, callback: BaseCallback) -> bool:
    """Return whether `callback` is `root` or stands somewhere below it."""
    return any(one is callback for one in below(root))


def called_every_step(root: BaseCallback, callback: BaseCallback) -> bool:
    """Return whether nothing but lists stands between SB3 and `callback`."""
    return any(one is callback for one in _members(root))


def with_state(root: BaseCallback, ours: BaseCallback) -> dict[str, BaseCallback]:
    """Return the callbacks to capture, by name: all members of lists except ours.

    What stands below an event callback belongs to it and is met there.
    """
    found: dict[str, BaseCallback] = {}
    count: Counter[str] = Counter()
    for callback in _members(root):
        if callback is ours or (isinstance(callback, ConvertCallback) and callback.callback is None):
            continue
        name = type(callback).__qualname__
        count[name] += 1
        found[name if count[name] == 1 else f"{name}#{count[name]}"] = callback
    return found


def _members(root: BaseCallback) -> Iterator[BaseCallback]:
    if type(root) is CallbackList:
        for callback in root.callbacks:
            yield from _members(callback)
    else:
        yield root
