"""What saving has cost: time against the budget, and bytes.

The budget (`max_overhead`) bounds the share of the time that goes into saving: training that stands still, and the writer
that works beside it. Every save is paid for by the time until the next one of the same process.

Not promised: the time of the writer (`durable`) of saves of which only the checkpoint is left. They are left out of shares.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise

from unbroken.engine.duration import percent
from unbroken.inspection.overview import SavePoint, Story
from unbroken.report.quantity import moment, number, seconds, size
from unbroken.ui.charts.chart import Chart, Column, DataTable, Spec, axis, layout, thinned
from unbroken.ui.charts.palette import BLUE, GREEN, ORANGE, VIOLET

SECONDS: Mapping[float, str] = {
    1e-5: "0.01 ms", 1e-4: "0.1 ms", 1e-3: "1 ms", 1e-2: "10 ms", 0.1: "0.1 s", 1.0: "1 s", 10.0: "10 s", 60.0: "1 min",
    600.0: "10 min", 3600.0: "1 h", 36000.0: "10 h", 360000.0: "100 h",
}  # fmt: skip
BYTES: Mapping[float, str] = {
    float(32**power): text
    for power, text in enumerate(
        ("1 B", "32 B", "1 KiB", "32 KiB", "1 MiB", "32 MiB", "1 GiB", "32 GiB", "1 TiB", "32 TiB", "1 PiB")
    )
}


@dataclass(frozen=True, slots=True)
class Share:
    """What share of the time went into one save, and into all of them until then; from 0 to 1."""

    point: SavePoint
    own: float
    so_far: float


def shares(points: Sequence[SavePoint]) -> tuple[Share, ...]:
    """Return the share of each save that was followed by another one of the same process, in the order of time."""
    spent = passed = 0.0
    found: list[Share] = []
    for point, until in _paid(points):
        cost = (point.blocked or 0.0) + (point.durable or 0.0)
        spent, passed = spent + cost, passed + until
        found.append(Share(point, cost / until, spent / passed))
    return tuple(found)


def save_cost(story: Story, budget: float | None) -> Chart:
    """Return what each save has cost in time, and the share of all saves against the budget."""
    title = "What saving costs"
    told = f"{percent(budget)} of the time" if budget is not None else "none is on record"
    caption = "How long each save took, from when training stood still until the checkpoint was durable."
    points = [point for point in story.points if point.blocked is not None]
    if not points:
        why = "Nothing was saved yet." if not story.points else "No save of this run says what it has cost."
        return Chart("cost", title, caption, {}, DataTable((), ()), nothing=why)
    places = thinned([(point.blocked or 0.0) + (point.durable or 0.0) for point in points])
    drawn = [points[place] for place in places]
    known = shares(points)
    own = {id(share.point): share for share in known}
    durable = [point.durable for point in drawn]
    data = [_spent(drawn, "training stood still", [point.blocked for point in drawn], BLUE, "circle")]
    if any(durable):
        data.append(_spent(drawn, "written beside it until durable", durable, VIOLET, "diamond-open"))
    lower = [_shared([own[id(point)] for point in drawn if id(point) in own])] if known else []
    if budget is not None:
        lower.append(_bound(drawn, budget))
    spent = [value for point in drawn for value in (point.blocked, point.durable) if value]
    if known:
        caption = (
            f"Above: {caption[:1].lower()}{caption[1:]} Below: the share of the time that saving took so far."
        )
    else:
        caption += " What share of the time that was is known from the second save of a process on."
    caption += f" Budget: {told}."
    figure: Spec = {"data": [*data, *lower], "layout": _layout(spent, both=bool(lower))}
    left = len(points) - len(drawn)
    table = DataTable(
        (
            Column("step", numeric=True), Column("saved"), Column("stood still", numeric=True),
            Column("written in", numeric=True), Column("share so far", numeric=True), Column("reason"),
        ),
        tuple(_row(point, own.get(id(point))) for point in drawn),
        f"{number(left)} of {number(len(points))} saves are left out." if left else "",
    )  # fmt: skip
    return Chart("cost", title, caption, figure, table)


def sizes(story: Story) -> Chart:
    """Return how large each save was, and how much of it was new on the disk."""
    title = "What saves write"
    caption = (
        "Uncompressed: the arrays of a checkpoint and its documents. New on the disk: all that was written for it,"
        " records and indexes included, so of a small run it may be more."
    )
    points = [point for point in story.points if point.bytes is not None]
    if not points:
        why = "Nothing was saved yet." if not story.points else "No save of this run says how large it was."
        return Chart("sizes", title, caption, {}, DataTable((), ()), nothing=why)
    places = thinned([None if p.written is None else float(p.written) for p in points])
    drawn = sorted((points[place] for place in places), key=lambda point: point.at)
    data = [
        _large(drawn, "uncompressed", [point.bytes for point in drawn], BLUE, "circle"),
        _large(drawn, "new on the disk", [point.written for point in drawn], GREEN, "diamond-open"),
    ]
    figure: Spec = {
        "data": data,
        "layout": layout(
            xaxis=axis("global step", tickformat=",d", rangemode="tozero"),
            yaxis=_powers("bytes", [v for p in drawn for v in (p.bytes, p.written) if v], BYTES),
        ),
    }
    left = len(points) - len(drawn)
    table = DataTable(
        (
            Column("step", numeric=True), Column("saved"), Column("uncompressed", numeric=True),
            Column("new on the disk", numeric=True),
        ),
        tuple(
            (number(p.at), moment(p.time), _sized(p.bytes), _sized(p.written))
            for p in drawn
        ),
        f"{number(left)} of {number(len(points))} saves are left out." if left else "",
    )  # fmt: skip
    return Chart("sizes", title, caption, figure, table)


def _layout(spent: Sequence[float], *, both: bool) -> Spec:
    """Return the layout, with a lower half if there is something in it."""
    upper = {**_powers("time", spent, SECONDS), **({"domain": [0.42, 1]} if both else {})}
    if not both:
        return layout(xaxis=axis("time (UTC)", type="date"), yaxis=upper)
    lower = axis("share of the time", tickformat="~%", rangemode="tozero", domain=[0, 0.3])
    return layout(height=420, xaxis=axis("time (UTC)", type="date", anchor="y2"), yaxis=upper, yaxis2=lower)


def _powers(title: str, values: Sequence[float], ticks: Mapping[float, str]) -> Spec:
    """Return a logarithmic axis that reaches from the tick below all values to the one above."""
    low = max([tick for tick in ticks if tick <= min(values, default=1.0)], default=min(ticks))
    high = min([tick for tick in ticks if tick > max(values, default=1.0)], default=max(ticks))
    ends = [math.log10(low) - 0.05, math.log10(high) + 0.05]
    return axis(title, type="log", range=ends, tickvals=list(ticks), ticktext=list(ticks.values()))


def _paid(points: Sequence[SavePoint]) -> Iterator[tuple[SavePoint, float]]:
    """Yield each save that says all of what it cost, with the seconds until the next one of the same process."""
    for point, following in pairwise(points):
        until = following.time - point.time
        if (
            point.epoch == following.epoch
            and until > 0
            and None not in (point.blocked, point.durable)
        ):  # fmt: skip
            yield point, until


def _spent(
    points: Sequence[SavePoint], label: str, values: Sequence[float | None], colour: str, symbol: str
) -> Spec:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label,
        "meta": "saved",
        "x": [_date(point.time) for point in points],
        "y": [value or None for value in values],  # a logarithm has no place for nothing
        "text": [
            f"step {number(p.step)}: {_lasted(v)}" for p, v in zip(points, values, strict=True)
        ],
        "marker": {"color": colour, "symbol": symbol, "size": 6},
        "hovertemplate": f"%{{text}}<extra>{label}</extra>",
    }  # fmt: skip


def _shared(known: Sequence[Share]) -> Spec:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "share so far",
        "x": [_date(one.point.time) for one in known],
        "y": [one.so_far for one in known],
        "yaxis": "y2",
        "line": {"color": BLUE, "width": 2},
        "hovertemplate": "%{y:.2%}<extra>share so far</extra>",
    }


def _bound(points: Sequence[SavePoint], budget: float) -> Spec:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"budget: {percent(budget)}",
        "x": [_date(points[0].time), _date(points[-1].time)],
        "y": [budget, budget],
        "yaxis": "y2",
        "line": {"color": ORANGE, "width": 2, "dash": "dash"},
        "hovertemplate": "budget %{y:.2%}<extra></extra>",
    }


def _large(
    points: Sequence[SavePoint], label: str, values: Sequence[int | None], colour: str, symbol: str
) -> Spec:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": label,
        "meta": "step",
        "x": [point.at for point in points],
        "y": [value or None for value in values],
        "text": [_sized(value) for value in values],
        "line": {"color": colour, "width": 1.5},
        "marker": {"color": colour, "symbol": symbol, "size": 5},
        "hovertemplate": f"step %{{x:,}}: %{{text}}<extra>{label}</extra>",
    }


def _row(point: SavePoint, share: Share | None) -> tuple[str, ...]:
    return (
        number(point.at),
        moment(point.time),
        _lasted(point.blocked),
        _lasted(point.durable),
        "" if share is None else f"{share.so_far:.2%}",
        point.reason,
    )


def _lasted(value: float | None) -> str:
    return "not known" if value is None else seconds(value)


def _sized(value: int | None) -> str:
    return "not known" if value is None else size(value)


def _date(time: float) -> str | None:
    """Return a moment as plotly.js reads it; None of a clock that was far off."""
    try:
        return datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")
    except (OverflowError, ValueError, OSError):
        return None
