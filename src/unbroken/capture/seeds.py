"""The seed that each environment was last reset with, by its index: a plain fact for people and reports.

Not promised: environments that keep no seed, and generators that somebody has replaced since.
"""

from __future__ import annotations

from typing import Any

from unbroken.capture.async_vectors import is_in_workers, known_seeds
from unbroken.capture.attaching import seed_of
from unbroken.capture.environments import chain


def seeds_of(env: Any) -> list[int | None]:
    """Return the seeds of an environment, or of each environment of a vector, whatever wraps it.

    Of environments in processes of their own they are as of the newest capture, and none before it: asking
    would cost every checkpoint a question to each.
    """
    *_, base = chain(env)
    if is_in_workers(base):
        return known_seeds(base)
    members = vars(base).get("envs")
    return [seed_of(base)] if members is None else [seed_of(member) for member in members]
