"""Charts: what they show of a run, and that plotly.js takes them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import plotly.graph_objects as go
import pytest

from unbroken.errors import ConfigError
from unbroken.inspection.makeup import Piece, Share
from unbroken.inspection.overview import RepeatedSteps, Restart, SavePoint, Story
from unbroken.ui.charts.chart import DRAWN, Chart, embedded
from unbroken.ui.charts.costs import save_cost, shares, sizes
from unbroken.ui.charts.curves import CELLS, ENDS, MOST_METRICS, POINTS, UNKNOWN, curve, reward_and_loss
from unbroken.ui.charts.treemap import treemap

HOSTILE = "<script>alert(1)</script>"


def point(
    step: int,
    metrics: Mapping[str, float] | None = None,
    *,
    abandoned: bool = False,
    time: float | None = None,
) -> SavePoint:
    return SavePoint(
        sequence=step + 1, step=step, at=step, segment=0, position="step", time=1.79e9 + step if time is None else time,
        epoch=1, reason="it was time", metrics=metrics or {}, good=True, blocked=0.25, durable=0.75, bytes=2**20,
        written=2**12, inexact=0, abandoned=abandoned,
    )  # fmt: skip


def restart(at: int, *, fault: str = "soft", tier: str = "newest", lost: int | None = 5) -> Restart:
    return Restart(
        time=1.79e9, event="start", first=False, step=at, at=at, fault=fault, tier=tier, sequence=1,
        steps_lost=lost, at_least=False, seconds=0.5, reasons=(HOSTILE,), changes=(), process="process 1 on here",
    )  # fmt: skip


def drawn(chart: Chart) -> list[dict[str, Any]]:
    """Return the traces; plotly's own validation refuses whatever plotly.js would not understand."""
    assert not chart.nothing
    go.Figure(chart.figure)
    traces: list[dict[str, Any]] = json.loads(chart.json)["figure"]["data"]
    return traces


def named(chart: Chart) -> Mapping[str, dict[str, Any]]:
    return {trace["name"]: trace for trace in drawn(chart) if trace.get("visible", True)}


def test_every_kill_resume_tier_and_lost_stretch_is_marked() -> None:
    story = Story(
        points=tuple(point(step, {"reward": float(step)}) for step in (0, 10, 20, 30)),
        restarts=(restart(10), restart(20, tier="older", fault="data", lost=None)),
        lost=(RepeatedSteps(10, 15, 0.0), RepeatedSteps(20, None, 0.0)),
    )
    reward, _ = reward_and_loss(story)
    marks = named(reward)
    assert marks["killed, or gone"]["x"] == [15]
    assert marks["killed, or gone, at some step after"]["x"] == [20]
    assert marks["went on: newest"]["x"] == [10]
    assert marks["went on: older"]["x"] == [20]
    assert marks["went on: newest"]["marker"]["symbol"] != marks["went on: older"]["marker"]["symbol"]
    shapes = json.loads(reward.json)["figure"]["layout"]["shapes"]
    assert [(one["x0"], one["x1"]) for one in shapes if one["type"] == "rect"] == [(10, 15)]


def test_what_was_left_behind_is_no_part_of_the_line_that_counts() -> None:
    points = (
        point(0, {"r": 0.0}),
        point(10, {"r": 1.0}),
        point(20, {"r": 9.0}, abandoned=True),
        point(20, {"r": 2.0}),
    )
    reward, _ = reward_and_loss(Story(points, (), ()))
    lines = named(reward)
    assert (lines["r"]["x"], lines["r"]["y"]) == ([0, 10, 20], [0.0, 1.0, 2.0])
    assert lines["left behind"]["y"] == [9.0]
    assert [row[3] for row in reward.table.rows] == ["yes", "yes", "left behind", "yes"]


def test_reward_and_loss_are_found_by_their_usual_names_and_every_metric_can_be_chosen() -> None:
    metrics = {
        "rollout/ep_len_mean": 1.0,
        "rollout/ep_rew_mean": 2.0,
        "train/loss": 3.0,
        "train/value_loss": 4.0,
    }
    reward, loss = reward_and_loss(Story((point(1, metrics),), (), ()))
    assert [choice.label for choice in reward.choices if choice.chosen] == ["rollout/ep_rew_mean"]
    assert [choice.label for choice in loss.choices if choice.chosen] == ["train/loss"]
    assert {choice.label for choice in loss.choices} == set(metrics)
    traces = drawn(loss)
    for choice in loss.choices:
        assert traces[choice.traces[0]]["y"] == [metrics[choice.label]]


def test_of_many_metrics_some_are_drawn_and_every_other_one_is_had_by_its_name() -> None:
    names = [f"m/{number:02}" for number in range(64)]
    points = tuple(
        point(step, {name: float(step + place) for place, name in enumerate(names)}) for step in range(850)
    )
    story = Story(points, (), ())
    every = curve(story, "reward")
    assert [choice.label for choice in every.choices] == names
    assert sum(bool(choice.traces) for choice in every.choices) == MOST_METRICS
    alone = curve(story, "reward", metric="m/40", most=1)
    assert [choice.label for choice in alone.choices] == names
    assert [choice.label for choice in alone.choices if choice.traces] == ["m/40"]
    assert [choice.label for choice in alone.choices if choice.chosen] == ["m/40"]
    assert named(alone)["m/40"]["y"] == [step + 40.0 for step in range(850)]
    with pytest.raises(ConfigError, match="m/64"):
        curve(story, "reward", metric="m/64")


def test_a_chart_and_its_table_are_bounded_however_many_metrics_and_saves_there_are() -> None:
    def size(metrics: int) -> int:
        points = tuple(
            point(step, {f"m{number}": math.sin(step * number) for number in range(metrics)})
            for step in range(2000)
        )
        chart = curve(Story(points, (), ()), "reward")
        assert sum(len(trace["x"]) for trace in drawn(chart)) <= POINTS
        assert sum(len(row) - 4 for row in chart.table.rows) <= CELLS
        assert ("metrics are left out" in chart.table.note) == (metrics > 100)
        return len(chart.json)

    assert size(120) < 1.2 * size(12)


def test_a_metric_that_is_no_number_is_a_gap_in_the_line_and_a_word_in_the_table() -> None:
    points = (
        point(0, {"reward": 1.0}),
        point(10, {"reward": math.nan}),
        point(20, {"reward": math.inf}),
        point(30, {"reward": 2.0}),
    )
    reward, _ = reward_and_loss(Story(points, (), ()))
    assert named(reward)["reward"]["y"] == [1.0, None, None, 2.0]
    assert [row[-1] for row in reward.table.rows] == ["1", "nan", "inf", "2"]


def test_of_ten_thousand_points_those_are_drawn_that_show_each_high_and_low() -> None:
    points = tuple(
        point(step, {"reward": 100.0 if step == 4321 else math.sin(step)}) for step in range(10_000)
    )
    story = Story(points, (), ())
    reward, _ = reward_and_loss(story)
    line = named(reward)["reward"]
    assert len(line["x"]) <= DRAWN
    assert max(line["y"]) == 100.0
    assert line["x"][line["y"].index(100.0)] == 4321
    assert len(reward.table.rows) <= DRAWN
    assert "9,0" in reward.table.note
    for chart in (save_cost(story, 0.02), sizes(story)):
        assert max(len(trace["x"]) for trace in drawn(chart)) <= DRAWN


def test_names_and_words_of_a_run_are_no_markup_in_a_figure_nor_end_its_script() -> None:
    story = Story((point(1, {f"reward{HOSTILE}": 1.0}),), (restart(0, tier="newest"),), ())
    share = Share(
        HOSTILE, HOSTILE, None, "approximate", HOSTILE, 10, None, (Piece(HOSTILE, 6), Piece("b", 4))
    )
    for chart in (*reward_and_loss(story)[:1], save_cost(story, None), treemap([share], title="x")):
        drawn(chart)
        assert "<" not in chart.json
        told = json.dumps(json.loads(chart.json)["figure"]["data"])
        for trace in json.loads(told):
            for key in ("name", "text", "labels"):
                assert "<script" not in json.dumps(trace.get(key, ""))
    assert json.loads(embedded({"a": HOSTILE})) == {"a": HOSTILE}


def test_the_share_of_saving_is_what_was_spent_over_the_time_until_the_next_save() -> None:
    points = (point(0, time=0.0), point(1, time=10.0), point(2, time=110.0))
    assert [(share.own, share.so_far) for share in shares(points)] == [(0.1, 0.1), (0.01, 2 / 110)]
    chart = save_cost(Story(points, (), ()), 0.02)
    budget = named(chart)["budget: 2 %"]
    assert set(budget["y"]) == {0.02}


def test_without_a_budget_and_with_one_save_the_cost_is_drawn_without_its_lower_half() -> None:
    chart = save_cost(Story((point(0),), (), ()), None)
    assert all(trace.get("yaxis", "y") == "y" for trace in drawn(chart))
    assert "none is on record" in chart.caption
    assert "Below" not in chart.caption


@pytest.mark.parametrize(
    "make",
    [lambda s: reward_and_loss(s)[0], lambda s: save_cost(s, None), sizes],
    ids=["reward", "cost", "sizes"],
)
def test_a_run_without_a_save_has_a_word_in_the_place_of_each_chart(make: Any) -> None:
    assert make(Story((), (), ())).nothing == "Nothing was saved yet."


def test_a_run_that_has_crashed_is_marked_at_its_newest_save() -> None:
    story = Story((point(0, {"r": 0.0}), point(20, {"r": 2.0})), (), ())
    assert UNKNOWN not in named(reward_and_loss(story)[0])
    assert named(reward_and_loss(story, crashed=True)[0])[UNKNOWN]["x"] == [20]


def test_steps_lost_of_which_only_a_bound_is_known_end_in_a_hollow_mark() -> None:
    bounded = replace(restart(10, tier="older", fault="data", lost=10), at_least=True)
    points = tuple(point(step, {"r": float(step)}) for step in (0, 10, 20, 30))
    marks = named(reward_and_loss(Story(points, (bounded,), (RepeatedSteps(10, 20, 0.0),)))[0])
    assert ENDS not in marks
    assert marks[UNKNOWN]["x"] == [20]
    assert "at least 10" in marks["went on: older"]["text"][0]
    assert "last ended: checkpoint damaged" in marks["went on: older"]["text"][0]
    assert marks[UNKNOWN]["text"][0].startswith("ended (checkpoint damaged); how far")


def test_a_start_that_found_its_training_finished_has_no_mark() -> None:
    idle = replace(restart(20, lost=0), idle=True)
    reward, _ = reward_and_loss(Story((point(0, {"r": 0.0}), point(20, {"r": 2.0})), (idle,), ()))
    assert set(named(reward)) == {"r", "left behind"}
    assert json.loads(reward.json)["figure"]["layout"]["shapes"] == []


def test_values_that_no_axis_can_span_are_gaps() -> None:
    points = (point(0, {"r": 1.7e308}), point(10, {"r": 1.0}), point(20, {"r": -1.7e308}))
    reward, _ = reward_and_loss(Story(points, (), ()))
    assert named(reward)["r"]["y"] == [None, 1.0, None]
    assert [row[-1] for row in reward.table.rows] == ["1.7e+308", "1", "-1.7e+308"]


def test_clocks_that_were_far_off_cost_no_chart() -> None:
    story = Story((point(0, {"reward": 1.0}, time=1e300), point(1, {"reward": 2.0}, time=-1e300)), (), ())
    for chart in (reward_and_loss(story)[0], save_cost(story, 0.1)):
        drawn(chart)


def test_a_component_that_is_not_exact_is_hatched_and_says_so() -> None:
    exact = Share(
        "policy_weights",
        "policy_weights",
        None,
        "exact",
        "",
        100,
        50,
        (Piece("w", 90), Piece("everything else", 10)),
    )
    other = Share(
        "env_states", "env_states", None, "approximate", "replayed", 40, None, (Piece("its document", 40),)
    )
    chart = treemap([exact, other], title="x")
    (trace,) = drawn(chart)
    by_id = {id_: place for place, id_ in enumerate(trace["ids"])}
    assert trace["values"][by_id["\n"]] == 140
    assert trace["marker"]["pattern"]["shape"][by_id["policy_weights"]] == ""
    assert trace["marker"]["pattern"]["shape"][by_id["env_states"]] == "/"
    assert "approximate" in trace["text"][by_id["env_states"]]
    for place, parent in enumerate(trace["parents"]):
        below = [
            value
            for value, of in zip(trace["values"], trace["parents"], strict=True)
            if of == trace["ids"][place]
        ]
        assert sum(below) in (0, trace["values"][place])
        assert parent in ("", *trace["ids"])
