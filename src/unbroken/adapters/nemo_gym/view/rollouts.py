"""The rollouts of one agent, as the layered document tells them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from unbroken.adapters.nemo_gym.protocol import AgentState
from unbroken.adapters.nemo_gym.records import RolloutRecord
from unbroken.adapters.nemo_gym.view import bodies
from unbroken.adapters.nemo_gym.view.ledger import Entry

EXPLORATION = (
    "temperature", "top_p", "top_k", "min_p", "seed", "max_output_tokens", "max_tokens", "frequency_penalty",
    "presence_penalty", "repetition_penalty", "top_logprobs",
)  # fmt: skip
"""Parameters of a request to a model that decide how far it strays from the likeliest answer."""


def agent_state(records: Iterable[RolloutRecord], ledger: Sequence[Entry] | None = None) -> AgentState:
    """Return what is known of an agent: by the rollouts that it keeps, and by those that the trainer has not got yet.

    An agent keeps a rollout until a checkpoint without it is durable, so only the trainer knows which rewards are still to come.
    """
    rollouts = sorted(records, key=lambda record: record.id)
    answers = [answer for record in rollouts for answer in record.answers if answer.model]
    rewards = (
        [reward_of(record) for record in rollouts] if ledger is None else [entry.reward for entry in ledger]
    )
    facts = {record.id: _facts(record) for record in rollouts}
    for entry in ledger or ():
        facts[entry.id] = {**facts.get(entry.id, {}), **entry.facts()}
    return AgentState(
        policy_state={
            "policy_versions": sorted({a.policy_version for a in answers if a.policy_version}),
            "model_calls": len(answers),
        },
        exploration_params=exploration(rollouts),
        reward_buffer=[reward for reward in rewards if reward is not None],
        extensions={"unbroken": {"rollouts": facts}},
    )


def reward_of(record: RolloutRecord) -> float | None:
    """Return the reward of a rollout that has ended well; None of any other. A failure has no reward."""
    if not 0 < record.status < 400:
        return None
    return bodies.number(bodies.as_object(record.result).get("reward"))


def exploration(rollouts: Iterable[RolloutRecord]) -> dict[str, Any]:
    """Return what the rows ask for: the value where all ask for the same, else all values, in the order of rollouts."""
    found: dict[str, list[Any]] = {}
    for record in rollouts:
        asked = bodies.as_object(record.body).get("responses_create_params")
        if not isinstance(asked, dict):
            continue
        for name, value in cast("dict[str, Any]", asked).items():
            if name in EXPLORATION and value is not None and value not in found.setdefault(name, []):
                found[name].append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in sorted(found.items())}


def _facts(record: RolloutRecord) -> dict[str, Any]:
    return {
        "attempt": record.attempt,
        "answers": len(record.answers),
        "model_calls": sum(answer.model for answer in record.answers),
        "policy_versions": sorted({a.policy_version for a in record.answers if a.policy_version}),
        "finished": record.status != 0,
        "status": record.status,
        "reward": reward_of(record),
    }
