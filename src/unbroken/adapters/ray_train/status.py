"""What a worker says of itself with a report: epoch, seed of its environment, rollouts, place in a queue, …

It stands in `meta.json` under `worker_status`, one entry a rank, and comes back to the rank after a resume.
"""

from __future__ import annotations

from collections.abc import Mapping

from unbroken.errors import ConfigError
from unbroken.types import Plain

TAKEN = ("rank", "pid", "host", "bytes", "episodes", "worker_status", "workers")
"""What every entry has anyway, by which nothing else can go."""


def checked(facts: Mapping[str, object]) -> dict[str, Plain]:
    """Return facts as they can be written in JSON.

    >>> checked({"epoch": 3, "env_seed": None})
    {'epoch': 3, 'env_seed': None}

    Raises:
        ConfigError: a name is taken, or a value is more than a plain fact.
    """
    for name in facts:
        if name in TAKEN:
            raise ConfigError(
                f"{name} stands in every worker's status already.", hint="Report it by another name."
            )
    found = {name: _plain(name, value) for name, value in facts.items()}
    seeds = found.get("env_seeds", [])
    if not isinstance(seeds, list) or not all(type(seed) in (int, type(None)) for seed in seeds):
        raise ConfigError(
            f"env_seeds has one whole number for each environment, by its index, and not {seeds!r:.80}.",
            hint="Report a single one as env_seed.",
        )
    return found


def _plain(name: str, value: object) -> Plain:
    if isinstance(value, (list, tuple)):
        return [_plain(name, part) for part in value]
    item = getattr(value, "item", None)  # a number of numpy or torch
    if callable(item) and getattr(value, "size", None) in (1, None) and getattr(value, "ndim", 1) == 0:
        value = item()
    # A subclass (an enumeration, say) would come back as something else.
    if value is None or (isinstance(value, (bool, int, str)) and type(value) in (bool, int, str)):
        return value
    if (
        isinstance(value, float) and type(value) is float and value - value == 0.0
    ):  # JSON has no NaN, no infinity
        return value
    raise ConfigError(
        f"{name}={value!r:.80} is no plain fact about a worker.",
        hint="Report numbers, strings and lists of them; state belongs to what is tracked.",
    )
