"""Where in SB3's training loop a state was taken.

The loop keeps this in local variables, which no capture can see; `TrainingLoop` counts along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Final, Literal, TypeAlias

from unbroken.errors import StateMismatch

Kind: TypeAlias = Literal["start", "step", "rollout", "end", "stopped"]

START: Final = "start"
"""Before a rollout: `collect_rollouts` is about to be called. Of ARS: before an update."""
STEP: Final = "step"
"""In a rollout, before the next environment step: the policy is about to choose actions."""
ROLLOUT: Final = "rollout"
"""After a rollout, all of which is in the buffer: `train()` is about to be called. It is done again."""
END: Final = "end"
"""The loop has reached its number of steps; `on_training_end` has not been called yet."""
STOPPED: Final = "stopped"
"""The same, but because a callback said so: there is nothing to go on with, whatever the number of steps."""

_KINDS: Final[dict[str | int, Kind]] = {
    START: START,
    STEP: STEP,
    ROLLOUT: ROLLOUT,
    END: END,
    STOPPED: STOPPED,
}


@dataclass(slots=True)
class Position:
    """A place in the loop. `rollouts` are complete; `steps` of the present one are, too.

    `episodes_before` is the model's count of episodes when the present rollout began.
    """

    kind: Kind = START
    rollouts: int = 0
    steps: int = 0
    episodes_before: int = 0
    episodes: int = 0
    """Episodes that have ended, over all environments."""
    calls: int = 0
    """How often our callback was called: below an event callback that decides when to save."""
    learning_starts: int | None = None
    """What the present rollout began with, where the model has another one since."""
    steps_of_rollout: int | None = None
    """The same of `train_freq`, where it counts steps."""
    episodes_of_rollout: int | None = None
    """The same of `train_freq`, where it counts episodes."""
    lost: str | None = None
    """The names of what it began with that cannot be noted, with spaces between."""

    def began_with(
        self,
        *,
        learning_starts: int | None = None,
        steps: int | None = None,
        episodes: int | None = None,
        lost: Sequence[str] = (),
    ) -> None:
        """Note what the present rollout began with and the model has no more."""
        self.learning_starts = learning_starts
        self.steps_of_rollout, self.episodes_of_rollout = steps, episodes
        self.lost = " ".join(lost) or None

    def as_record(self) -> dict[str, str | int]:
        """Return the position as plain values, without what is None."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_record(cls, record: dict[str, str | int]) -> Position:
        """Read what `as_record` gave. Raises StateMismatch for anything else."""
        kind = _KINDS.get(record.get("kind", ""))
        names = [f.name for f in fields(cls) if f.name not in ("kind", "lost")]
        optional = [f.name for f in fields(cls) if f.default is None]
        counts = {name: record.get(name) for name in names if name in record or name not in optional}
        lost = record.get("lost", "")
        known = all(type(n) is int and n >= 0 for n in counts.values())
        if kind is None or not known or not isinstance(lost, str):
            raise StateMismatch(
                f"The checkpoint does not say where in the training loop it was taken (it says {record}).",
                hint="It was not written by this adapter; start the run with the framework it came from.",
            )
        position = cls(kind=kind, lost=lost or None)
        for name, count in counts.items():
            setattr(position, name, count)
        return position
