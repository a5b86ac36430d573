"""What is whole and is not taken all the same."""

from __future__ import annotations

from unbroken.errors import CorruptObject


class Rejected(CorruptObject):
    """A checkpoint can be read and is not good enough to go on from: the next older one is tried.

    It is not damaged. So it stays where it is, and keeps its place among those that are kept.
    """
