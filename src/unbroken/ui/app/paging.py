"""One page of a long list, and the addresses of its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import urlencode

T = TypeVar("T")
U = TypeVar("U")

AROUND = 2
"""So many neighbours of the page at hand are named on each side, beside the first and the last."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some of `total` entries. Pages are counted from 1; there is always one, be it empty."""

    items: Sequence[T]
    number: int
    count: int
    total: int
    first: int
    """The place of the first entry in the whole list, counted from 1; 0 if there is none."""
    parameter: str
    query: Mapping[str, str]

    @property
    def last(self) -> int:
        """The place of the last entry shown."""
        return self.first + len(self.items) - 1 if self.items else 0

    def link(self, number: int) -> str:
        """Return the query of another page: what else was asked stays."""
        asked = {key: value for key, value in self.query.items() if value and key != self.parameter}
        return "?" + urlencode({**asked, self.parameter: number}, errors="surrogatepass")

    @property
    def numbers(self) -> list[int | None]:
        """The pages to name; None stands for those that are left out.

        >>> paged(range(1000), 10, size=10).numbers
        [1, None, 8, 9, 10, 11, 12, None, 100]
        """
        near = range(self.number - AROUND, self.number + AROUND + 1)
        shown = sorted({1, self.count, *(number for number in near if 1 <= number <= self.count)})
        told: list[int | None] = []
        for number in shown:
            if told and number - (told[-1] or 0) > 1:
                told.append(None)
            told.append(number)
        return told

    def mapped(self, make: Callable[[T], U]) -> Page[U]:
        """Return the page with something else made of each of its entries."""
        items = [make(item) for item in self.items]
        return Page(items, self.number, self.count, self.total, self.first, self.parameter, self.query)


def paged(
    entries: Iterable[T] | Sequence[T],
    number: int,
    *,
    size: int,
    parameter: str = "page",
    query: Mapping[str, str] | None = None,
) -> Page[T]:
    """Return one page of a list; the nearest one there is where `number` is none.

    >>> page = paged("abcde", 2, size=2)
    >>> list(page.items), page.first, page.last, page.count, page.total
    (['c', 'd'], 3, 4, 3, 5)
    """
    whole = entries if isinstance(entries, Sequence) else list(entries)
    count = max(1, -(-len(whole) // size))
    at = min(max(number, 1), count)
    start = (at - 1) * size
    items = whole[start : start + size]
    return Page(items, at, count, len(whole), start + 1 if items else 0, parameter, query or {})


def page_number(text: str) -> int:
    """Return the number of a page as an address gives it; 1 where it is none.

    >>> page_number("3"), page_number("x"), page_number("9" * 50)
    (3, 1, 1)
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 1
