"""`FreshWorld`: an opt-in wrapper that makes BipedalWalker cheap to restore.

Not imported by anything but the public face: whoever wants it has Gymnasium.

Not promised: environments of other kinds, which it refuses.
"""

from __future__ import annotations

from typing import Any

import gymnasium

from unbroken.capture import box2d_world
from unbroken.errors import ConfigError


class FreshWorld(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gives BipedalWalker a new physics world before each reset.

    The environment itself keeps one world for ever, so that each episode depends, in its last bits, on all
    before it, and an exact restore has to replay all of them. With this wrapper an episode depends on nothing
    but its own start, and a restore replays no more than the episode in progress. It may stand anywhere in a
    chain of wrappers. Episodes after the first differ in their last bits from those without the wrapper, so
    put it in when a run begins, not in the middle of one.

    Raises ConfigError for other environments: those of Gymnasium need no such wrapper.

    Not promised: a `reset` that is called on an environment inside, past the wrapper.

    Raises:
        ConfigError: it is another environment than BipedalWalker.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        if not box2d_world.is_renewable(env.unwrapped):
            raise ConfigError(
                f"FreshWorld is made for BipedalWalker, and {type(env.unwrapped).__qualname__} is none.",
                hint="Leave the wrapper out: how an environment is captured is found out by itself.",
            )

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in a new world."""
        box2d_world.renew(self.unwrapped)
        return self.env.reset(**kwargs)
