"""What a checkpoint is made of, as areas: components, and in each its largest arrays.

A component that does not come back exactly is hatched and says so in its label.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from unbroken.inspection.makeup import Share
from unbroken.report.quantity import size
from unbroken.ui.charts.chart import Chart, Column, DataTable, Spec, layout, words
from unbroken.ui.charts.palette import INEXACT, MUTED, SURFACE, TEXT, TINTS

EXACT = "exact"
STORED = frozenset({"value", "memory", "_modules", "_parameters", "_buffers"})
WHOLE = "\n"
"""The id of the area around all others; no component has this name."""


def treemap(shares: Sequence[Share], *, title: str, name: str = "makeup") -> Chart:
    """Return the components of one checkpoint as a treemap. `title` says which one."""
    caption = "Uncompressed bytes. A component that does not come back exactly is hatched."
    if not shares:
        return Chart(name, title, caption, {}, DataTable((), ()), nothing="This checkpoint holds nothing.")
    areas = list(_areas(shares))
    trace: Spec = {
        "type": "treemap",
        "ids": [area.id for area in areas],
        "labels": [words(area.label) for area in areas],
        "parents": [area.parent for area in areas],
        "values": [area.nbytes for area in areas],
        "text": [words(area.text) for area in areas],
        "branchvalues": "total",
        "textinfo": "label+text",
        "textfont": {"color": TEXT},
        "hovertemplate": "%{label}<br>%{text}<br>%{percentRoot:.1%} of the checkpoint<extra></extra>",
        "marker": {
            "colors": [area.colour for area in areas],
            "line": {"color": SURFACE, "width": 1.5},
            "pattern": {
                "shape": [area.hatch for area in areas],
                "fgcolor": MUTED,
                "bgcolor": [area.colour for area in areas],
                "fillmode": "replace",
                "solidity": 0.06,
                "size": 10,
            },
        },
        "pathbar": {"visible": True, "textfont": {"color": TEXT}},
        "tiling": {"pad": 2},
        "maxdepth": 3,
    }
    figure: Spec = {
        "data": [trace],
        "layout": layout(height=380, margin={"l": 0, "r": 0, "t": 24, "b": 0}),
    }
    return Chart(name, title, caption, figure, table(shares), walked=False)


@dataclass(frozen=True, slots=True)
class _Area:
    id: str
    label: str
    parent: str
    nbytes: int
    text: str
    colour: str
    hatch: str = ""


def _areas(shares: Sequence[Share]) -> Iterator[_Area]:
    """Yield the whole, its components and their parts."""
    yield _Area(WHOLE, "all components", "", sum(share.nbytes for share in shares), "", SURFACE)
    for number, share in enumerate(shares):
        inexact = share.fidelity not in ("", EXACT)
        colour, hatch = (INEXACT, "/") if inexact else (TINTS[number % len(TINTS)], "")
        text = f"{size(share.nbytes)}, {share.fidelity}" if inexact else size(share.nbytes)
        yield _Area(share.component, share.label, WHOLE, share.nbytes, text, colour, hatch)
        for piece in share.pieces if len(share.pieces) > 1 else ():
            id_ = f"{share.component}\n{piece.place}"
            yield _Area(
                id_, _last(piece.place), share.component, piece.nbytes, size(piece.nbytes), colour, hatch
            )


def table(shares: Sequence[Share]) -> DataTable:
    """Return the components as a table."""
    whole = sum(share.nbytes for share in shares) or 1
    columns = (
        Column("component"), Column("uncompressed", numeric=True), Column("share", numeric=True),
        Column("on disk", numeric=True), Column("promise"), Column("largest parts", wide=True), Column("why not exact", wide=True),
    )  # fmt: skip
    rows = tuple(
        (
            share.label,
            size(share.nbytes),
            f"{share.nbytes / whole:.1%}",
            "not known" if share.stored is None else size(share.stored),
            share.fidelity or "not known",
            ", ".join(f"{piece.place} {size(piece.nbytes)}" for piece in share.pieces[:3]),
            share.reason,
        )
        for share in shares
    )
    return DataTable(columns, rows)


def _last(place: str) -> str:
    """Return the end of a place, without the parts that only say how it is stored.

    >>> _last("model/policy/_modules/q_net/_modules/2/_parameters/weight/value/memory/value")
    '…/2/weight'
    """
    parts = [part for part in place.split("/") if part not in STORED]
    return "/".join(parts if len(parts) <= 2 else ("…", *parts[-2:])) or place
