"""The moment between two environment steps at which SB3's loop holds nothing but a few counts.

It is the call by which `collect_rollouts` asks for the next actions: `policy(obs)` on-policy,
`_sample_action(...)` off-policy. Everything of the step before is stored by then. Callbacks and
environments may call the policy too; only a call that comes straight from SB3's own loop counts, so
the caller's code is looked at, and no guess is made about when a call may come from elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch

from unbroken.capture.hooks import Hook

KNOWN = ("stable_baselines3", "sb3_contrib")
"""Packages whose `collect_rollouts` is known to hold nothing else between two steps."""

_BETWEEN = ("torch.", "unbroken.")


def loops_of(model: object) -> tuple[CodeType, ...]:
    """Return the code of each known `collect_rollouts` that may run for `model`."""
    found = (vars(cls).get("collect_rollouts") for cls in type(model).__mro__)
    return tuple(
        function.__code__
        for function in found
        if function is not None and function.__module__.partition(".")[0] in KNOWN
    )


def has_known_loop(model: object) -> bool:
    """Return whether rollouts of `model` are collected by code that we know."""
    method = getattr(type(model), "collect_rollouts", None)
    return method is not None and method.__module__.partition(".")[0] in KNOWN


def called_by(codes: tuple[CodeType, ...]) -> bool:
    """Return whether the code that called into torch, or into us, is one of `codes`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_BETWEEN):
        frame = frame.f_back
    return frame is not None and any(frame.f_code is code for code in codes)


class PolicyCall:
    """A forward pre-hook that reports the calls of one loop. Copies and pickles as no hook at all."""

    def __init__(
        self, policy: torch.nn.Module, loops: tuple[CodeType, ...], report: Callable[[], None]
    ) -> None:
        self._loops = loops
        self._report = report
        self._handle = policy.register_forward_pre_hook(self)

    def __call__(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if called_by(self._loops):
            self._report()

    def remove(self) -> None:
        """Take the hook off the policy."""
        self._handle.remove()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return {}.get

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # `{}.get(module, args)` returns `args`, which torch takes as "inputs unchanged". A policy that
        # somebody saved whole thus loads where this package is not installed.
        return getattr, ({}, "get")


class SampleCall:
    """The same for `_sample_action` of an off-policy algorithm."""

    def __init__(self, model: object, loops: tuple[CodeType, ...], report: Callable[[], None]) -> None:
        self._loops = loops
        self._report = report
        self._hook = Hook(model, "_sample_action", self._sample, keeper=self)
        self._hook.install()

    def _sample(self, *args: Any, **kwargs: Any) -> Any:
        if called_by(self._loops):
            self._report()
        return self._hook.original(*args, **kwargs)

    def remove(self) -> None:
        """Give the method back."""
        self._hook.remove()
