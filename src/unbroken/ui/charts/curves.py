"""A metric over the global steps, with every interruption above it.

Above the curve lies a strip with two rows: where a process ended, and where the next one went on. Between the two lie the
steps that were lost, shaded through the curve. What training went back before is a dashed line of its own.

Not promised: where a process ended that left no word of it. Its mark then stands where the next one went on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from unbroken.errors import ConfigError
from unbroken.inspection.overview import Restart, SavePoint, Story
from unbroken.report.ending import ended
from unbroken.report.quantity import moment, number, seconds
from unbroken.ui.charts.chart import (
    DRAWN,
    Chart,
    Choice,
    Column,
    DataTable,
    Spec,
    axis,
    layout,
    thinned,
    words,
)
from unbroken.ui.charts.palette import BLUE, GREEN, LOST, MUTED, ORANGE, VIOLET

REWARD = (
    r"ep_rew_mean$",
    r"mean_reward$",
    r"episode_(return|reward)_mean$",
    r"return",
    r"reward",
    r"rew",
    r"score",
)
LOSS = (r"train/loss$", r"^loss$", r"total_loss", r"loss")
ENDS = "killed, or gone"
UNKNOWN = "killed, or gone, at some step after"
TIERS = {
    "newest": ("triangle-right", GREEN),
    "older": ("diamond", VIOLET),
    "rebuilt": ("square", VIOLET),
    "fresh": ("circle-open", ORANGE),
}
"""The mark of a start, by how far recovery fell."""
CURVES = {"reward": ("Reward", REWARD), "loss": ("Loss", LOSS)}
"""The title of a curve, and the patterns of what it shows at first."""
MOST_METRICS = 12
"""So many metrics of a chart come with their lines."""
POINTS = 4 * DRAWN
"""So many points have the lines of a chart together, those left behind apart."""
CELLS = 10_000
"""So many values are in a table at most."""
COLUMNS = 100
"""So many metrics are in a table at most."""
LARGEST = 1e300
"""A value beyond is a gap in its line: plotly.js reckons with sums of the values on an axis."""
MOST_SHADED = 200
"""So many of the newest lost stretches are shaded; all are marked."""


def reward_and_loss(story: Story, *, most: int = MOST_METRICS, crashed: bool = False) -> tuple[Chart, Chart]:
    """Return the two curves that a person asks for first, as `curve` makes them."""
    return curve(story, "reward", most=most, crashed=crashed), curve(
        story, "loss", most=most, crashed=crashed
    )


def curve(
    story: Story, name: str, *, metric: str | None = None, most: int = MOST_METRICS, crashed: bool = False
) -> Chart:
    """Return one of `CURVES`: at first `metric`, else the metric that its patterns find first; without one, none is drawn.

    Every metric is a choice, always in the same order. `most` of them come with traces, `metric` among them; the others
    are to be asked for by name: then `metric` is theirs, and `most` may be 1. The size of the chart is bounded by
    `POINTS` and `CELLS` and grows with the names alone. `crashed`: the last process is gone, and nobody has gone on: that
    is marked, too.

    Raises:
        ConfigError: no save has recorded that metric.
    """
    title, patterns = CURVES[name]
    metrics = story.metrics
    usual = preferred(metrics, patterns)
    caption = (
        "Values as they were at each save, over the global step."
        " Above: where a process ended and where the next one went on; shaded: steps lost, which were done again."
    )
    if metric is not None and metric not in metrics:
        raise ConfigError(
            f"No save of this run has recorded a metric {metric!r}.",
            hint=f"It has recorded: {', '.join(metrics[:MOST_METRICS]) or 'none'}.",
        )
    if not metrics or (usual is None and metric is None and name == "loss"):
        return Chart(name, title, caption, {}, DataTable((), ()), nothing=nothing(story, title))
    first = usual or metrics[0]
    ordered = [first, *(one for one in metrics if one != first)]
    chosen = metric or first
    drawn = {chosen, *[one for one in ordered if one != chosen][: max(0, most - 1)]}
    share = min(DRAWN, (POINTS - DRAWN) // max(1, len(drawn) - 1))
    traces: list[Spec] = []
    choices: list[Choice] = []
    for one in ordered:
        own: list[Spec] = []
        if one in drawn:
            own = _lines(story.points, one, hidden=one != chosen, most=DRAWN if one == chosen else share)
        choices.append(Choice(one, tuple(range(len(traces), len(traces) + len(own))), one == chosen))
        traces += own
    marks = _marks(story, crashed=crashed)
    always = tuple(range(len(traces), len(traces) + len(marks)))
    figure: Spec = {"data": [*traces, *marks], "layout": _layout(story, chosen, strip=bool(marks))}
    table = _table(story.points, [chosen, *(one for one in ordered if one != chosen)])
    return Chart(name, title, caption, figure, table, tuple(choices), f"{title}: metric", always)


def preferred(metrics: Sequence[str], patterns: Sequence[str]) -> str | None:
    """Return the first metric that the first of the patterns finds.

    >>> preferred(["rollout/ep_len_mean", "rollout/ep_rew_mean"], REWARD)
    'rollout/ep_rew_mean'
    """
    for pattern in patterns:
        for metric in metrics:
            if re.search(pattern, metric, re.IGNORECASE):
                return metric
    return None


def nothing(story: Story, title: str) -> str:
    """Return why there is no curve."""
    if not story.points:
        return "Nothing was saved yet."
    if not story.metrics:
        return "No save of this run has recorded a metric."
    return f"No metric of this run looks like a {title.lower()}: {', '.join(story.metrics)}."


def _lines(points: Sequence[SavePoint], metric: str, *, hidden: bool, most: int) -> list[Spec]:
    """Return the line of what counts, and the dashed one of what was left behind; of each at most `most` points."""
    counts = [point for point in points if not point.abandoned and metric in point.metrics]
    counts.sort(key=lambda point: point.at)
    left = [point for point in points if point.abandoned and metric in point.metrics]
    return [
        _line(counts, metric, words(metric), {"color": BLUE, "width": 2}, "circle", hidden=hidden, most=most),
        _line(
            left,
            metric,
            "left behind",
            {"color": MUTED, "width": 1.5, "dash": "dot"},
            "x-thin-open",
            hidden=hidden,
            most=most,
        ),
    ]


def _line(
    points: Sequence[SavePoint],
    metric: str,
    label: str,
    line: Spec,
    symbol: str,
    *,
    hidden: bool,
    most: int,
) -> Spec:
    values = [_finite(point.metrics[metric]) for point in points]
    places = thinned(values, most)
    xs: list[int | None] = []
    ys: list[float | None] = []
    texts: list[str] = []
    before: SavePoint | None = None
    for place in places:
        point = points[place]
        if before is not None and point.abandoned and point.epoch != before.epoch:
            xs.append(None)  # of another process: no line between them
            ys.append(None)
            texts.append("")
        xs.append(point.at)
        ys.append(values[place])
        texts.append(words(f"saved {moment(point.time)}{f': {point.reason}' if point.reason else ''}"))
        before = point
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(places) <= 150 else "lines",
        "name": label,
        "meta": "step",
        "x": xs,
        "y": ys,
        "text": texts,
        "line": line,
        "marker": {"symbol": symbol, "size": 6, "color": line["color"]},
        "connectgaps": False,
        "hovertemplate": "step %{x:,}<br>%{y:.6g}<br>%{text}<extra></extra>",
        "visible": not hidden,
        "showlegend": bool(points),
    }


def _marks(story: Story, *, crashed: bool) -> list[Spec]:
    starts = [one for one in story.restarts if one.went_on]
    killed = [one for one in starts if one.interrupted]
    marks: list[Spec] = []
    known = [(one.at + (one.steps_lost or 0), _ended(one)) for one in killed if _is_known(one)]
    unknown = [(one.at + (one.steps_lost or 0), _ended(one)) for one in killed if not _is_known(one)]
    newest = story.gist.newest
    if crashed and newest is not None:
        told_of = f"ended, and nobody has gone on; how far it had come after step {number(newest.step)} is not known"
        unknown.append((newest.at, told_of))
    for label, symbol, own_marks in ((ENDS, "x", known), (UNKNOWN, "x-open", unknown)):
        if own_marks:
            marks.append(
                _mark(label, [at for at, _ in own_marks], 1, [text for _, text in own_marks], symbol, ORANGE)
            )
    for tier, (symbol, colour) in TIERS.items():
        own = [one for one in starts if one.tier == tier]
        if own:
            marks.append(
                _mark(f"went on: {tier}", [one.at for one in own], 0, list(map(told, own)), symbol, colour)
            )
    return marks


def _mark(label: str, xs: Sequence[int], row: int, texts: Sequence[str], symbol: str, colour: str) -> Spec:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label,
        "x": list(xs),
        "y": [row] * len(xs),
        "yaxis": "y2",
        "text": [words(text).replace("\n", "<br>") for text in texts],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"symbol": symbol, "size": 10, "color": colour, "line": {"width": 1.5, "color": colour}},
        "cliponaxis": False,
    }


def told(one: Restart) -> str:
    """Return a start in a few lines."""
    lost = "not known" if one.steps_lost is None else f"{'at least ' * one.at_least}{number(one.steps_lost)}"
    return (
        f"went on at step {number(one.step)} from {one.tier}\nlast ended: {ended(one.fault)}; steps lost: {lost}\n"
        f"recovered in {seconds(one.seconds)}, {moment(one.time)}"
    )


def _is_known(one: Restart) -> bool:
    """Return whether the process had left word of how far it came."""
    return one.steps_lost is not None and not one.at_least


def _ended(one: Restart) -> str:
    if one.steps_lost is None or one.at_least:
        far = number(one.step + (one.steps_lost or 0))
        return f"ended ({ended(one.fault)}); how far it had come after step {far} is not known"
    return f"ended ({ended(one.fault)}) at step {number(one.step + one.steps_lost)}, as far as it left word"


def _layout(story: Story, metric: str, *, strip: bool) -> Spec:
    starts = [one for one in story.restarts if one.went_on]
    lost = [one for one in story.lost[-MOST_SHADED:] if one.last is not None]
    shapes = [_shaded(one.first, one.last or one.first) for one in lost]
    shapes += [_upright(one.at) for one in starts[-MOST_SHADED:]]
    upper: Spec = {
        "domain": [0.88, 1],
        "range": [-0.7, 1.7],
        "fixedrange": True,
        "tickvals": [0, 1],
        "ticktext": ["went on", "ended"],
        "tickfont": {"color": MUTED, "size": 11},
        "showgrid": False,
        "zeroline": False,
    }
    return layout(
        xaxis=axis("global step", tickformat=",d", rangemode="tozero"),
        yaxis=axis(words(metric), domain=[0, 0.84 if strip else 1]),
        shapes=shapes,
        **({"yaxis2": upper} if strip else {}),
    )


def _shaded(first: int, last: int) -> Spec:
    return {**_tall(first, last), "type": "rect", "fillcolor": LOST, "line": {"width": 0}}


def _upright(at: int) -> Spec:
    return {**_tall(at, at), "type": "line", "line": {"color": MUTED, "width": 1, "dash": "dot"}}


def _tall(first: int, last: int) -> Spec:
    return {"xref": "x", "yref": "paper", "x0": first, "x1": last, "y0": 0, "y1": 1, "layer": "below"}


def _table(points: Sequence[SavePoint], metrics: Sequence[str]) -> DataTable:
    """Return the values at each save, chosen by the first metric where not all of them fit."""
    told_of = [point for point in points if point.metrics]
    shown = metrics[:COLUMNS]
    places = thinned(
        [_finite(point.metrics.get(shown[0], math.nan)) for point in told_of], min(DRAWN, CELLS // len(shown))
    )
    columns = (
        Column("step", numeric=True), Column("saved"), Column("reason"), Column("counts"),
        *(Column(metric, numeric=True) for metric in shown),
    )  # fmt: skip
    rows = tuple(
        (
            number(point.at), moment(point.time), point.reason, "left behind" if point.abandoned else "yes",
            *(f"{point.metrics[metric]:.6g}" if metric in point.metrics else "" for metric in shown),
        )
        for point in (told_of[place] for place in places)
    )  # fmt: skip
    left, unnamed = len(told_of) - len(rows), len(metrics) - len(shown)
    notes = [f"{number(left)} of {number(len(told_of))} saves are left out."] if left else []
    if unnamed:
        notes.append(f"{number(unnamed)} of {number(len(metrics))} metrics are left out.")
    return DataTable(columns, rows, " ".join(notes))


def _finite(value: float) -> float | None:
    """Return what can be drawn; None of NaN, infinities, and what is so large that an axis around it overflows."""
    return value if abs(value) <= LARGEST else None
