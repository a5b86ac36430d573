"""What is said of a loss is measured: against a control, in processes that are killed, and as the page shows it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from exactness.lost import page
from exactness.lost.runs import NotTheControl, measured
from exactness.lost.trainings import COUNTERS, GENERATORS, TRAININGS, Told, Training


def short(training: Training) -> Training:
    return Training(training.name, training.what, 100, 40, training.parts, training.run)


def test_a_lost_generator_shows_at_the_next_step_and_a_lost_counter_never(tmp_path: Path) -> None:
    (loop,) = (training for training in TRAININGS if training.name == "loop")
    _, (generators, counters) = measured(short(loop), tmp_path, [GENERATORS, COUNTERS])
    assert (generators.part, generators.acts) == (GENERATORS, 1)
    assert generators.learned > 1
    assert generators.apart > 0
    assert (counters.part, counters.acts, counters.learned, counters.apart) == (COUNTERS, 0, 0, 0.0)


def test_where_a_run_that_lost_nothing_is_another_one_nothing_is_said(tmp_path: Path) -> None:
    (loop,) = (training for training in TRAININGS if training.name == "loop")

    def unrepeatable(training: Training, every: int, kill: int, told: Told) -> None:
        loop.run(training, every, kill, told)
        told.acts[-1] = os.urandom(8).hex()

    training = Training("loop", "", 100, 40, {}, unrepeatable)
    with pytest.raises(NotTheControl):
        measured(training, tmp_path, [])


def test_the_page_shows_what_was_measured() -> None:
    figures, text = page.figures(), page.PAGE.read_text(encoding="utf-8")
    assert page.inserted(text, figures) == text
    shown = {(loss.training, loss.part) for loss in figures.losses}
    assert shown == {(training.name, part) for training in TRAININGS for part in training.parts}
    assert figures.steps == {training.name: training.steps for training in TRAININGS}
    assert figures.at == {training.name: training.at for training in TRAININGS}


def test_every_training_says_where_its_figures_come_from() -> None:
    found = page.figures()
    assert found.measured.keys() == {training.name for training in TRAININGS}
    for name, source in found.measured.items():
        assert re.fullmatch(r"[0-9a-f]{7,40}", source.commit), name
        assert {"torch", "stable-baselines3"} <= source.versions.keys(), name
        assert source.said in page.PAGE.read_text(encoding="utf-8"), name


def test_each_state_of_the_table_was_measured_under_its_own_name() -> None:
    written = page.PAGE.read_text(encoding="utf-8").partition(page.BEGIN)[0]
    for part, title in page.TITLES.items():
        assert written.count(f"\n| {title} |") == 1, part
    assert {part for training in TRAININGS for part in training.parts} == set(page.TITLES)
