"""Every face takes every setting, and a mistyped one is told from an object."""

from __future__ import annotations

import inspect
from dataclasses import fields

import numpy as np
import pytest

import unbroken
from unbroken.engine.options import OPTIONS, STORING, Options, divided, settings_of
from unbroken.engine.settings import Settings
from unbroken.errors import ConfigError


def test_options_are_the_settings_without_the_place_of_the_run() -> None:
    assert {field.name for field in fields(Settings) if field.init} - {"root", "job"} == OPTIONS
    assert STORING < OPTIONS


def test_an_option_and_its_setting_are_of_one_type() -> None:
    of_settings = {field.name: field.type for field in fields(Settings)}
    said = {**Options.__annotations__}
    for name, annotation in said.items():
        assert getattr(annotation, "__forward_arg__", annotation) == of_settings[name], name


def test_a_face_hands_on_what_it_is_called_with() -> None:
    run = unbroken.Run("runs/dqn", keep_last=2, signals=(), compression="gzip", exit_code=3, journal=True)
    assert run.settings == Settings(
        root="runs/dqn", keep_last=2, signals=(), compression="gzip", exit_code=3, journal=True
    )


def test_a_mistyped_option_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"Run has no option 'keep_lst'\. Did you mean keep_last\?"):
        unbroken.Run("runs/dqn", keep_lst=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def test_an_option_under_the_files_name_is_answered_with_its_own() -> None:
    with pytest.raises(ConfigError, match=r"no option 'max_checkpoints'\. Did you mean keep_last\?"):
        settings_of("CheckpointCallback", "runs/dqn", {"max_checkpoints": 2})
    with pytest.raises(ConfigError, match=r"no setting 'save_every_n_steps'\. Did you mean every\?"):
        divided({"save_every_n_steps": 2})


def test_an_option_that_resembles_none_is_answered_with_the_list() -> None:
    with pytest.raises(ConfigError, match="There are: allow_changed, best, compression,"):
        settings_of("Run", "runs/dqn", {"xyzzy": 2})


def test_what_a_face_does_not_take_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="start takes no resume: Tune decides"):
        settings_of("start", "runs/dqn", {"resume": "must"}, refused={"resume": "Tune decides"})


def test_objects_are_told_from_settings_by_name() -> None:
    net = np.zeros(3)
    assert divided({"keep_last": 2, "policy": net}) == ({"keep_last": 2}, {"policy": net})


def test_a_plain_value_under_nearly_the_name_of_a_setting_is_no_object() -> None:
    with pytest.raises(ConfigError, match=r"no setting 'keep_lst'\. Did you mean keep_last\?"):
        divided({"keep_lst": 2})
    net = np.zeros(3)
    assert divided({"keep_lst": net}) == ({}, {"keep_lst": net})


def test_help_shows_every_setting() -> None:
    shown = inspect.signature(unbroken.Run).parameters
    assert shown.keys() >= OPTIONS
    assert shown["keep_last"].default == 5
    assert "options" not in shown
