"""What a view makes of a component."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from unbroken.report.table import Table

Parts: TypeAlias = "list[Table | str]"


@dataclass(frozen=True, slots=True)
class Shown:
    """A component as a person and as a machine gets to see it."""

    parts: Parts
    data: object
