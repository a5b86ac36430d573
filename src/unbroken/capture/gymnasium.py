"""Gymnasium: which of an environment's attributes belong to the run.

Environments, wrappers and spaces are ordinary Python objects, so the walk carries them whole: physics in
attributes, elapsed steps, frame stacks, running means, and every generator, shared ones as shared. Spaces
are walked where they stand on a class, too: `action_space = Discrete(2)` in its body has one generator for all of
its environments, which no attribute of theirs shows. What stays behind is the description (`spec`) and what draws pictures (windows, surfaces, clocks, renderers):
the freshly built environment has its own.

Of an `AsyncVectorEnv` the rest lives in processes of Gymnasium's own: see `async_vectors`.

Not promised: an attribute of the user's own class that holds a picture, a window or a process.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from unbroken.state.policy import Policy

_AGENT = frozenset({"_unbroken_agent", "_unbroken_errand"})
"""What stands on an environment in a worker while it is spoken to: see `worker_agent`."""


def spaces_on_class(obj: object) -> Mapping[str, Any]:
    """Return the spaces that stand on the class of an environment: attributes, containers of spaces, and those of
    its agents where a method of the class remembers them (`functools.lru_cache`, as PettingZoo advises)."""
    space: Any = sys.modules["gymnasium"].spaces.Space
    found: dict[str, Any] = {}
    for base in reversed(type(obj).__mro__):
        for name, value in vars(base).items():
            found.pop(name, None)
            if _is_made_of(space, value) or (name in _OF_AGENTS and hasattr(value, "cache_info")):
                found[name] = value
    for name in _OF_AGENTS & found.keys():
        if hasattr(found[name], "cache_info"):
            remembered = found.pop(name)
            for agent in _agents(obj):
                with suppress(Exception):  # whatever a method of the program raises: then there is no space
                    found[f"{name}({agent!r})"] = remembered(obj, agent)
    return found


_OF_AGENTS = frozenset({"action_space", "observation_space"})


def _agents(obj: Any) -> list[Any]:
    try:
        return list(obj.possible_agents)
    except AttributeError:  # it is not complete yet, or its agents are not known beforehand
        return []


def _is_made_of(space: type, value: object) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(one, space) for one in value)
    return isinstance(value, space)


POLICY = Policy(
    on_class=dict.fromkeys(
        (
            "gymnasium.core:Env",
            "gymnasium.vector.vector_env:VectorEnv",
            "pettingzoo.utils.env:ParallelEnv",
            "pettingzoo.utils.env:AECEnv",
            "stable_baselines3.common.vec_env.base_vec_env:VecEnv",
        ),
        spaces_on_class,
    ),
    skip={
        "gymnasium.core:Env": frozenset({"spec"}) | _AGENT,
        "gymnasium.core:Wrapper": frozenset({"_cached_spec"}) | _AGENT,
        "gymnasium.vector.vector_env:VectorEnv": frozenset({"spec"}),
        # What the environments were made by: used up once they are there.
        "gymnasium.vector.sync_vector_env:SyncVectorEnv": frozenset({"env_fns"}),
        "gymnasium.vector.async_vector_env:AsyncVectorEnv": frozenset(
            {"env_fns", "worker", "processes", "parent_pipes", "error_queue", "_state"}
        ),
        # A reading of this machine's clock: an episode in progress counts its time from the resume.
        "gymnasium.wrappers.common:RecordEpisodeStatistics": frozenset({"episode_start_time"}),
        "gymnasium.wrappers.vector.common:RecordEpisodeStatistics": frozenset({"episode_start_times"}),
    },
    external=frozenset({"pygame", "glfw", "matplotlib", "PIL", "gymnasium.envs.mujoco.mujoco_rendering"}),
    structural=frozenset({"gymnasium.core:Env", "gymnasium.vector.vector_env:VectorEnv"}),
    trusted=frozenset({"gymnasium", "minigrid"}),
    components={
        "gymnasium.core:Env": "env_states",
        "gymnasium.vector.vector_env:VectorEnv": "env_states",
    },
)
