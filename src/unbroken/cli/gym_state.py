"""The state of NeMo Gym in a checkpoint that a person names, and one session of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote

from unbroken.adapters.nemo_gym.protocol import GymState, SessionState
from unbroken.adapters.nemo_gym.trainer.payload import COMPONENT, Payload, read_payload
from unbroken.adapters.nemo_gym.view.layers import document
from unbroken.errors import ConfigError
from unbroken.format.records import Commit
from unbroken.inspection.target import Target, run_of
from unbroken.report.gym import facts_of
from unbroken.state.parts import split_name

SEVERAL = 5
"""So many of what a text may mean are named."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What a checkpoint holds of NeMo Gym. `place` is where the checkpoint lies."""

    place: str
    payload: Payload
    state: GymState


def saved(run: str) -> Saved:
    """Return what the checkpoint that `run` names holds of NeMo Gym.

    Raises:
        ConfigError: it holds nothing of it.
        CorruptObject, UnsupportedFormat: it cannot be read.
    """
    target = run_of(run)
    return target.read(lambda commit: _saved(target, commit))


def _saved(target: Target, commit: Commit) -> Saved:
    names = {entry.component for entry in target.repository.manifest(commit).documents.values()}
    found = sorted(name for name in names if split_name(name)[0] == COMPONENT)
    if not found:
        raise ConfigError(
            f"The checkpoint of step {commit.step} in {target.where} holds nothing of NeMo Gym.",
            hint=f"What it holds says: unbroken show {target.where}",
        )
    component = target.repository.load(commit, [found[0]]).components[found[0]]
    payload = read_payload(component)
    return Saved(target.place(commit), payload, document(payload, target.repository.meta(commit)))


def session_named(state: GymState, text: str, *, run: str) -> tuple[str, SessionState]:
    """Return the session of `run` that is meant by its id, the beginning of its id, or its rollout.

    Raises:
        ConfigError: none is, or several are.
    """
    sessions = state.environment.session_states
    found = meant(text, {name: str(facts_of(held).get("rollout", "")) for name, held in sessions.items()})
    if not found:
        raise ConfigError(
            f"There is no session {text!r}, and no rollout of this name with one.",
            hint=f"List them with: unbroken gym sessions {quote(run)}",
        )
    return found[0], sessions[found[0]]


def meant(text: str, sessions: Mapping[str, str]) -> list[str]:
    """Return the one session, or none, that is meant by its id, the beginning of its id, or its rollout, which stands
    behind each id.

    Raises:
        ConfigError: several are.
    """
    if text in sessions:
        return [text]
    begins = [session for session in sessions if session.startswith(text)]
    found = begins or [session for session, rollout in sessions.items() if rollout == text]
    if len(found) > 1:
        listed = ", ".join(found[:SEVERAL]) + (", …" if len(found) > SEVERAL else "")
        raise ConfigError(
            f"{text!r} may be any of {len(found)} sessions: {listed}.", hint="Give more of its id."
        )
    return found
