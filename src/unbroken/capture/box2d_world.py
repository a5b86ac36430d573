"""A new Box2D world before each reset: what `unbroken.envs.FreshWorld` does, and a replay of it.

BipedalWalker keeps one world for all episodes. The order in which Box2D looks at contacts then follows from
the episodes before, and a replay since the last reset comes out differently. In a new world nothing does.

Invariant: a world in which nothing stands yet is new, and left as it is.

Not promised: environments that keep more of an episode than their world.
"""

from __future__ import annotations

import importlib
from typing import Any

from unbroken.state.nodes import class_name

_WRAPPER = "unbroken.capture.fresh_world:FreshWorld"


def renews(layer: object) -> bool:
    """Whether a layer of an environment's chain is the wrapper."""
    return any(class_name(cls) == _WRAPPER for cls in type(layer).__mro__)


def is_renewable(base: Any) -> bool:
    """Whether `base` is an environment that keeps one Box2D world for all of its episodes, or derived from
    one. Nothing is imported to find out."""
    return any(
        class_name(cls) == "gymnasium.envs.box2d.bipedal_walker:BipedalWalker" for cls in type(base).__mro__
    )


def renew(base: Any) -> None:
    """Give an environment a new world, unless it has one: to be called before each reset."""
    if not base.terrain:
        return
    box2d: Any = importlib.import_module("Box2D")
    base._destroy()
    base.world = box2d.b2World()
