"""What the coordinator gives to every rank with its plan: under which claim, and where, to write its part.

It travels through the process group of torch.distributed.checkpoint, as plans do.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed.checkpoint.planner import SavePlan

from unbroken.errors import ConfigError
from unbroken.format.ranks import SaveOrder
from unbroken.format.records import Commit
from unbroken.repo.fencing import Claim


@dataclass(frozen=True, slots=True)
class Ticket:
    """The part of a rank in one save. `base` is the newest commit, which stays until this one is over."""

    rank: int
    job: str
    claim: Claim
    order: SaveOrder
    base: Commit | None


def check_usable(plan: SavePlan) -> None:
    """Raise ConfigError for a plan that stands for one of an earlier save: no ticket travels with it."""
    if not plan.usable:
        raise ConfigError(
            "The planner wants to use the plan of an earlier save, which names another checkpoint.",
            hint="Leave out enable_plan_caching.",
        )


def ticket_of(plan: SavePlan) -> Ticket:
    """Return the ticket that came with a plan."""
    found = plan.storage_data
    if isinstance(found, Ticket):
        return found
    raise ConfigError(
        "The planner has dropped what the coordinator sent with the plan.",
        hint="Let finish_plan keep storage_data, as DefaultSavePlanner does.",
    )
