"""Environments of several agents (PettingZoo's parallel ones) that a converter has turned into a vector.

SuperSuit's `concat_vec_envs_v1` holds copies of one environment, each of which is as many members of the
vector as it has agents. They are walked like everything else; what that gives is tried out with all agents
of one copy acting at once.

Not promised: environments whose attributes do not show their state. A recorder would not know whether it
has seen their last reset, so none is put in place, and they are declared approximate. Nor copies in other
processes (`num_cpus` above 1): SuperSuit's workers know only reset, step, render and close.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from unbroken.capture.environments import How, Verdict, chain
from unbroken.capture.probe import probe_live
from unbroken.state.nodes import class_name
from unbroken.types import Fidelity

_CONCAT = "supersuit.vector.concat_vec_env:ConcatVecEnv"
_MARKOV = "supersuit.vector.markov_vector_wrapper:MarkovVectorEnv"


class AllAgents:
    """An environment of several agents as one of a single agent, whose action is that of all of them.

    Like a wrapper it has the environment as `env`. Spaces, generators and state are the environment's own.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.agents: list[Any] = list(env.possible_agents)
        spaces: Any = sys.modules["gymnasium"].spaces
        self.action_space: Any = spaces.Tuple([env.action_space(agent) for agent in self.agents])

    @property
    def unwrapped(self) -> Any:
        """The environment inside."""
        return list(chain(self.env))[-1]

    def reset(self, **arguments: Any) -> tuple[Any, Any]:
        """Reset it."""
        observations, infos = self.env.reset(**arguments)
        return dict(observations), infos

    def step(self, action: Sequence[Any]) -> tuple[Any, Any, bool, bool, Any]:
        """Let every agent that is left act."""
        left = set(self.env.agents)
        actions = {agent: one for agent, one in zip(self.agents, action, strict=True) if agent in left}
        observations, rewards, ended, cut, infos = self.env.step(actions)
        over = all(ended.get(agent) or cut.get(agent) for agent in left)
        return dict(observations), dict(rewards), over, over, infos

    def close(self) -> None:
        """Leave it open: it belongs to the training."""


def agents_of(vector: Any) -> list[Any] | None:
    """Return the environments of several agents in a vector that SuperSuit has made of them, else None."""
    own, names = vars(vector), {class_name(cls) for cls in type(vector).__mro__}
    if _MARKOV in names:
        return [own["par_env"]]
    if _CONCAT not in names:
        return None
    found = [agents_of(part) for part in own["vec_envs"]]
    return None if None in found else [env for part in found for env in part or ()]


def verdict_on_agents(env: Any) -> Verdict:
    """Return what a restore of an environment of several agents will give. It is tried out, not touched."""
    verdict = probe_live(AllAgents(env))
    if verdict.how in (How.STRUCTURAL, How.CAPTURER):
        return verdict
    name = type(list(chain(env))[-1]).__qualname__
    return replace(
        verdict,
        how=How.STRUCTURAL,
        fidelity=Fidelity.APPROXIMATE,
        reason=f"{name} keeps state that its attributes do not show, and what several agents do is not replayed",
    )
