"""How a person reaches what a checkpoint of RLlib calls by a name of ours. Imports nothing of Ray."""

from __future__ import annotations

_REACHED = {
    "learner": (
        "algo.learner_group._learner",
        "the module that is trained: the newest weights, with all that training needs",
    ),
    "env_runner": (
        "algo.env_runner",
        "the copy that acts, as the learner last handed it over; algo.get_module() is this one",
    ),
    "eval_env_runner": ("algo.eval_env_runner", "the copy that acts in evaluations"),
}


def reached(root: str, owner: str) -> tuple[str, str] | None:
    """Return the expression for the object at a root of class `owner`, and what its module is to the training;
    None if it is none of ours.

    >>> reached("env_runner", "ray.rllib.env.single_agent_env_runner:SingleAgentEnvRunner")[0]
    'algo.env_runner'
    """
    return _REACHED.get(root) if owner.startswith("ray.rllib.") else None
