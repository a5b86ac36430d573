"""The alert rules in deploy/: real `promtool` checks them, and runs the tests that stand beside them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.monitoring.prometheus import DEPLOY, RULES, TESTS_OF_RULES, promtool
from unbroken.engine.monitoring.metrics import names

ALERTS = re.findall(r"alert: (\w+)", RULES.read_text())
NAME = re.compile(r"\b(?:unbroken_\w+|checkpoint_\w+|\w+_(?:percent|score|rate|errors|mb|mbps))\b")


def test_promtool_accepts_the_rules_and_the_example_configuration() -> None:
    for arguments in (("check", "rules", RULES.name), ("check", "config", "prometheus.yml")):
        said = promtool(*arguments, folder=RULES.parent)
        assert said.returncode == 0, said.stdout + said.stderr


def test_each_alert_fires_when_its_condition_is_true_and_is_silent_otherwise() -> None:
    said = promtool("test", "rules", TESTS_OF_RULES.name, folder=RULES.parent)
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_has_a_test_in_which_it_fires_and_one_in_which_it_is_silent(alert: str) -> None:
    said = re.findall(rf"- name: {alert} (fires|is silent)", TESTS_OF_RULES.read_text())
    assert {"fires", "is silent"} <= set(said)


@pytest.mark.parametrize(
    "mutations",
    [
        {
            "UnbrokenSaveFailing": ("unbroken_last_save_failed == 1 or", ""),
            "UnbrokenNoCheckpoint": ("          and unbroken_training == 1\n", ""),
            "UnbrokenRecoveryFell": ("unbroken_recovery_tier > 1", "unbroken_recovery_tier > 0"),
            "UnbrokenNotConsistent": ("state_consistency_score < 1", "state_consistency_score < 0.5"),
            "UnbrokenStorageGrowing": ("checkpoint_storage_usage_gb > 0.1 and", ""),
            "UnbrokenOverheadAboveBudget": (" * (unbroken_overhead_budget_percent > 0)", ""),
        },
        {
            "UnbrokenSaveFailing": (" or increase(unbroken_saves_failed_total[15m]) > 0", ""),
            "UnbrokenNoCheckpoint": (
                "- unbroken_started_timestamp_seconds > 3",
                "- unbroken_started_timestamp_seconds > 0",
            ),
        },
    ],
    ids=["one", "other"],
)
def test_rules_that_are_spoilt_fail_their_tests_and_no_others(
    tmp_path: Path, mutations: dict[str, tuple[str, str]]
) -> None:
    text = RULES.read_text()
    for old, new in mutations.values():
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / RULES.name).write_text(text)
    shutil.copy(TESTS_OF_RULES, tmp_path)
    said = promtool("test", "rules", TESTS_OF_RULES.name, folder=tmp_path)
    assert said.returncode != 0
    assert set(re.findall(r'alertname=\\"(\w+)\\"', said.stdout + said.stderr)) == set(mutations)


def test_the_rules_name_only_metrics_that_exist() -> None:
    expressions = re.findall(r"expr: (?:>-\n)?(.*?)\n        ?(?:for|labels):", RULES.read_text(), re.DOTALL)
    assert len(expressions) == len(ALERTS)
    named = {name for text in expressions for name in NAME.findall(text)}
    assert named
    assert named <= names()
    assert (DEPLOY / "prometheus" / "prometheus.yml").read_text().count("honor_labels: true") == 2
