"""What a run of the matrix has found, as it is written beside the page."""

from __future__ import annotations

import msgspec


class Row(msgspec.Struct, kw_only=True):
    """One cell and its outcome. Steps are those of the vector of environments."""

    key: str
    group: str
    algorithm: str
    environment: str
    around: str
    claim: str
    holds: bool
    """Whether everything is as claimed."""
    reason: str = ""
    """Why it is not exact, or what does not hold."""
    ways: str = ""
    """How the environment's state is kept."""
    steps: int = 0
    killed: int = 0
    resumed: int = 0
    """The step, as `learn` counts, from which the resumed run went on."""
    leaves: int = 0
    """How many leaves of the final checkpoints were compared."""
    cold: str = ""
    seconds: float = 0.0
    date: str = ""
    commit: str = ""


class Machine(msgspec.Struct, kw_only=True):
    """Where it ran."""

    cpu: str
    cores: int
    kernel: str
    versions: dict[str, str]


class Results(msgspec.Struct, kw_only=True):
    """One run of the command, and the rows of earlier ones that it was merged into."""

    date: str
    commit: str
    seconds: float
    seed: int
    jobs: int
    machine: Machine
    rows: list[Row]
