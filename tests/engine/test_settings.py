"""Settings are checked when they are made, and the environment has the last word."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from unbroken.engine.configuration.variables import READERS
from unbroken.engine.monitoring.target import Monitoring
from unbroken.engine.schedule import DEFAULT_EVERY, Every
from unbroken.engine.settings import Settings
from unbroken.errors import ConfigError
from unbroken.repo.retention import Best


def test_the_defaults_are_those_that_are_documented() -> None:
    settings = Settings(root="runs/dqn")
    assert settings.interval == DEFAULT_EVERY
    assert (settings.keep_last, settings.resume, settings.worst_tier) == (5, "auto", "rebuilt")
    assert not settings.strict
    assert not settings.trust
    assert settings.allow_changed == frozenset()


@pytest.mark.parametrize(
    ("root", "job"),
    [
        ("runs/dqn", "dqn"),
        (Path("/x/my run!"), "my-run-"),
        ("/", "run"),
        ("runs/.hidden", "hidden"),
        ("a/..", None),
    ],
)
def test_the_job_is_named_after_the_root_and_never_random(root: str | Path, job: str | None) -> None:
    assert Settings(root=root).job == (job or Path.cwd().name)


def test_the_environment_moves_the_root_and_not_the_job() -> None:
    settings = Settings(root="runs/dqn").overridden({"UNBROKEN_ROOT": "/elsewhere"})
    assert (settings.root, settings.job) == ("/elsewhere", "dqn")


def test_every_setting_can_come_from_the_environment() -> None:
    settings = Settings(root="runs/dqn").overridden(
        {
            "UNBROKEN_JOB": "other",
            "UNBROKEN_EVERY": "steps=100,seconds=2.5",
            "UNBROKEN_KEEP_LAST": "2",
            "UNBROKEN_BEST": "loss:min",
            "UNBROKEN_RESUME": "400",
            "UNBROKEN_WORST_TIER": "fresh",
            "UNBROKEN_STRICT": "1",
            "UNBROKEN_TRUST": "no",
            "UNBROKEN_ALLOW_CHANGED": "n_envs, gamma",
            "UNBROKEN_KEEP_FIRST": "true",
            "UNBROKEN_DOCUMENT_FORMAT": "msgpack",
            "UNBROKEN_STAGING": "4096",
            "UNBROKEN_WRITER": "process",
            "UNBROKEN_GRACE": "2.5",
        }
    )
    assert settings == Settings(
        root="runs/dqn",
        job="other",
        every=Every(steps=100, seconds=2.5),
        keep_last=2,
        best=Best("loss", "min"),
        resume=400,
        worst_tier="fresh",
        strict=True,
        allow_changed={"n_envs", "gamma"},
        keep_first=True,
        document_format="msgpack",
        staging=4096,
        writer="process",
        grace=2.5,
    )


@pytest.mark.parametrize(
    ("text", "every"),
    [
        ("500", Every(steps=500)),
        ("max_loss=5min,max_overhead=0.02", DEFAULT_EVERY),
        ("steps=1000, max_loss=90 ", Every(steps=1000, max_loss=90)),
        ("max_loss=1h", Every(max_loss="1h")),
    ],
)
def test_an_interval_is_written_as_in_a_script(text: str, every: Every) -> None:
    assert Settings(root="runs/dqn").overridden({"UNBROKEN_EVERY": text}).interval == every


def test_an_empty_variable_says_nothing() -> None:
    settings = Settings(root="runs/dqn")
    assert settings.overridden({"UNBROKEN_ROOT": "", "UNBROKEN_KEEP_LAST": ""}) is settings


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("UNBROKEN_EVERY", "0"),
        ("UNBROKEN_EVERY", "hours=2"),
        ("UNBROKEN_EVERY", "steps=many"),
        ("UNBROKEN_EVERY", "max_loss=soon"),
        ("UNBROKEN_EVERY", "max_loss="),
        ("UNBROKEN_EVERY", "max_overhead=2"),
        ("UNBROKEN_EVERY", "max_overhead=2%"),
        ("UNBROKEN_KEEP_LAST", "0"),
        ("UNBROKEN_KEEP_LAST", "five"),
        ("UNBROKEN_STRICT", "perhaps"),
        ("UNBROKEN_RESUME", "sometimes"),
        ("UNBROKEN_WORST_TIER", "worst"),
        ("UNBROKEN_BEST", "loss:median"),
        ("UNBROKEN_JOB", "../up"),
        ("UNBROKEN_GRACE", "a while"),
        ("UNBROKEN_GRACE", "-1"),
        ("UNBROKEN_GRACE", "nan"),
    ],
)
def test_a_variable_that_cannot_be_read_is_an_error(variable: str, text: str) -> None:
    with pytest.raises(ConfigError, match=variable):
        Settings(root="runs/dqn").overridden({variable: text})


def test_of_several_variables_the_one_that_is_wrong_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^UNBROKEN_WORST_TIER: ") as raised:
        Settings(root="runs/dqn").overridden({"UNBROKEN_KEEP_LAST": "3", "UNBROKEN_WORST_TIER": "worst"})
    assert "KEEP_LAST" not in str(raised.value)


def test_variables_that_need_each_other_are_taken_together() -> None:
    settings = Settings(root="runs/dqn").overridden({"UNBROKEN_RESUME": "best", "UNBROKEN_BEST": "loss:min"})
    assert (settings.resume, settings.best) == ("best", Best("loss", "min"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"root": ""},
        {"root": 7},
        {"root": None},
        {"every": 0},
        {"every": -5},
        {"every": True},
        {"keep_last": 0},
        {"keep_last": -1},
        {"keep_last": 1.5},
        {"keep_last": True},
        {"resume": "maybe"},
        {"resume": -1},
        {"resume": True},
        {"resume": "best"},
        {"worst_tier": "worse"},
        {"document_format": "pickle"},
        {"staging": -1},
        {"writer": "daemon"},
        {"grace": -1},
        {"grace": "30s"},
        {"grace": 10**400},
        {"sync_timeout": 10**400},
        {"exit_code": 0},
        {"exit_code": 256},
        {"exit_code": -1},
        {"every": 1 << 63},
        {"keep_last": 1 << 63},
        {"every": "steps=5,steps=6"},
        {"monitoring": "port=1,port=2"},
        {"trust": {".."}},
        {"trust": {"a."}},
        {"trust": {"a b.C"}},
        {"grace": True},
        {"grace": float("nan")},
        {"strict": 1},
        {"trust": "yes"},
        {"allow_changed": "n_envs"},
        {"job": "a/b"},
        {"job": ".."},
        {"job": 7},
        {"mirror": 7},
        {"mirror": "~nobody-of-this-name/x"},
        {"allow_changed": 7},
        {"allow_changed": {7}},
    ],
)
def test_bad_input_is_refused_before_anything_happens(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Settings(**{"root": "runs/dqn", **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "digits", ["9" * 5_000, "0x" + "f" * 5_000, "x" * 5_000], ids=["many", "hex", "text"]
)
@pytest.mark.parametrize("name", sorted(READERS))
def test_whatever_is_long_and_wrong_is_answered_within_a_line(name: str, digits: str) -> None:
    given: list[object] = [digits]
    if "x" not in digits[2:]:
        sys.set_int_max_str_digits(0)
        given.append(int(digits, 0))
        sys.set_int_max_str_digits(sys.int_info.default_max_str_digits)
    for value in given:
        try:
            made = Settings(**{"root": "runs/dqn", name: value})  # type: ignore[arg-type]
        except ConfigError as error:
            assert len(str(error)) < 500  # noqa: PT017 - some are long and right
        else:
            assert isinstance(value, str)
            assert getattr(made, name)
    try:
        Settings(root="runs/dqn").overridden({f"UNBROKEN_{name.upper()}": digits})
    except ConfigError as error:
        assert len(str(error)) < 500  # noqa: PT017


def test_a_place_for_metrics_inside_of_the_run_or_its_mirror_is_refused(tmp_path: Path) -> None:
    settings = Settings(root=tmp_path / "runs", mirror=tmp_path / "copies", job="dqn")
    for name in ("textfile", "tensorboard"):
        for inside in ("runs/dqn/x", "runs/dqn/steps/x", "runs/dqn", "copies/dqn/x"):
            with pytest.raises(ConfigError, match=f"{name}=.* lies inside the run"):
                Monitoring(**{name: tmp_path / inside}).check_outside(*settings.places)  # type: ignore[arg-type]
        Monitoring(**{name: tmp_path / "runs" / "x"}).check_outside(*settings.places)  # type: ignore[arg-type]
    assert Settings(root="s3://bucket/x", job="dqn").places == ()


def test_a_process_that_writes_needs_memory_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(ConfigError, match="memfd_create"):
        Settings(root="runs/dqn", writer="process")
    with pytest.raises(ConfigError, match="UNBROKEN_WRITER"):
        Settings(root="runs/dqn").overridden({"UNBROKEN_WRITER": "process"})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("every", "max_loss=5min", Every(max_loss="5min")),
        ("every", "500", Every(steps=500)),
        ("best", "loss:min", Best("loss", "min")),
        ("best", "reward", Best("reward")),
        ("best", "none", None),
        ("monitoring", "port=9109", Monitoring(port=9109)),
        ("monitoring", "none", None),
        ("mirror", "none", ""),
    ],
)
def test_a_script_may_write_what_a_variable_says(name: str, text: str, value: object) -> None:
    made = Settings(root="runs", **{name: text})  # type: ignore[arg-type]
    assert getattr(made, name) == value
    assert made == Settings(root="runs").overridden({f"UNBROKEN_{name.upper()}": text})


@pytest.mark.parametrize(
    ("name", "wrong", "why"),
    [
        ("best", 7, "best must say a metric"),
        ("best", "loss:median", "'loss:median' is no metric"),
        ("monitoring", 9109, "monitoring must say where metrics go"),
        ("monitoring", "9109", "'9109' names no place for metrics"),
        ("monitoring", "port=many", "port must be a whole number"),
        ("every", "often", "'often' is not a whole number"),
    ],
)
def test_what_says_no_metric_place_or_interval_is_refused(name: str, wrong: object, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Settings(root="runs", **{name: wrong})  # type: ignore[arg-type]


def test_a_word_that_is_no_way_to_resume_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"UNBROKEN_RESUME='bst' is neither auto, .* Did you mean best\?"):
        Settings(root="runs").overridden({"UNBROKEN_RESUME": "bst"})
