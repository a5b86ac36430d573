"""What a chart is: a figure for plotly.js, the same data as a table, and what may be chosen in it.

Invariant: texts that come from a run are escaped where plotly.js would read markup in them (`words`), and `embedded` gives
JSON that can end no script element. Stable: the fields of these records, which a template shows.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from unbroken.ui.charts.palette import DARK, GRID, MUTED, SURFACE, TEXT

Spec: TypeAlias = dict[str, object]
"""A part of a figure, as plotly.js wants it."""

DRAWN = 1000
"""So many points of a line are drawn, and shown in its table; of more a choice that keeps highs and lows."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"


@dataclass(frozen=True, slots=True)
class Column:
    """A heading of a table; `numeric` columns are aligned to the right, `wide` ones hold sentences."""

    name: str
    numeric: bool = False
    wide: bool = False


@dataclass(frozen=True, slots=True)
class DataTable:
    """The data of a chart, as texts. Not escaped: a template does that."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    """What is left out, if anything."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several things that a chart can show, and the numbers of its traces. Not escaped.

    Without traces it was not sent: whoever shows the chart leaves it out, or asks for it by its label.
    """

    label: str
    traces: tuple[int, ...]
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. `name` is good for an id; `nothing` says why there is none to be drawn, and is empty otherwise."""

    name: str
    title: str
    caption: str
    figure: Spec
    table: DataTable
    choices: tuple[Choice, ...] = ()
    choices_label: str = ""
    always: tuple[int, ...] = ()
    """The traces that are shown whatever is chosen."""
    nothing: str = ""
    walked: bool = True
    """Whether it has lines whose points can be walked along with the keyboard."""

    @property
    def json(self) -> str:
        """What the page's script draws from, as the text of a script element of type `application/json`."""
        choices = [
            {"label": words(one.label), "name": one.label, "traces": one.traces} for one in self.choices
        ]
        return embedded(
            {
                "figure": self.figure,
                "choices": choices,
                "always": self.always,
                "dark": DARK,
                "surface": SURFACE,
            }
        )


def words(text: str) -> str:
    """Return a text such that plotly.js shows it as it is.

    >>> words("<b>loss</b>")
    '&lt;b&gt;loss&lt;/b&gt;'
    """
    return html.escape(text, quote=False)


def embedded(data: object) -> str:
    r"""Return JSON for a script element. What is not a number is null.

    >>> embedded({"a": "</script>", "b": float("nan")})
    '{"a":"\\u003c/script\\u003e","b":null}'
    """
    text = msgspec.json.encode(data).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def axis(title: str, **more: object) -> Spec:
    """Return an axis in the style of all charts."""
    return {
        "title": {"text": title, "font": {"size": 12, "color": MUTED}, "standoff": 8},
        "gridcolor": GRID,
        "linecolor": GRID,
        "tickfont": {"color": MUTED, "size": 11},
        "zeroline": False,
        "automargin": True,
        **more,
    }


def layout(**more: object) -> Spec:
    """Return a layout in the style of all charts."""
    return {
        "font": {"family": FONT, "size": 12, "color": TEXT},
        "paper_bgcolor": SURFACE,
        "plot_bgcolor": SURFACE,
        "margin": {"l": 56, "r": 16, "t": 8, "b": 44},
        "height": 340,
        "hovermode": "closest",
        "hoverlabel": {
            "bgcolor": SURFACE,
            "bordercolor": MUTED,
            "font": {"family": FONT, "size": 12, "color": TEXT},
            "align": "left",
            "namelength": -1,
        },
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
            "font": {"color": TEXT, "size": 12},
        },
        "dragmode": "zoom",
        **more,
    }


def thinned(values: list[float | None], most: int = DRAWN) -> list[int]:
    """Return the places of at most `most` values that still show each high and low, in order; all if they are so few.

    >>> thinned([0.0, 9.0, 1.0, 2.0, 3.0, -5.0, 4.0, 4.0], most=4)
    [0, 1, 5, 7]
    """
    if len(values) <= most:
        return list(range(len(values)))
    buckets = most // 2
    chosen: set[int] = set()
    for number in range(buckets):
        low, high = number * len(values) // buckets, (number + 1) * len(values) // buckets
        known = [(value, place) for place in range(low, high) if (value := values[place]) is not None]
        if known:
            chosen |= {min(known)[1], max(known)[1]}
        else:
            chosen.add(low)
    return sorted(chosen)
