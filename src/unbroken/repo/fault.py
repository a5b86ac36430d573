"""What is wrong with one object of a run, as a fact to report. Not an error: nothing was asked of it."""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.errors import CorruptObject


@dataclass(frozen=True, slots=True)
class ObjectFault:
    """One damaged or missing object.

    `component` is the component that needs it, empty if it serves all. `digest` is the one that was
    expected, where one was. `problem` is one sentence.
    """

    component: str
    key: str
    digest: str
    problem: str

    def error(self) -> CorruptObject:
        """Return this fault as an error."""
        return CorruptObject(self.problem, key=self.key, digest=self.digest)

    def __str__(self) -> str:
        return f"{self.key}: {self.problem}" + (f" ({self.component})" if self.component else "")
