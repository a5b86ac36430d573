"""One line that tells what came back, and below it what else a person should know."""

from __future__ import annotations

import pytest

from unbroken.engine.faults import EndOfProcess, FaultKind
from unbroken.engine.recovery import RecoveryPlan, Tier
from unbroken.engine.report import Chosen, ResumeReport, lowered
from unbroken.state.snapshot import Promise
from unbroken.types import Fidelity

EXACT = Promise(Fidelity.EXACT)
NEARLY = Promise(Fidelity.APPROXIMATE, "nobody looked at this environment")
GONE = Promise(Fidelity.NOT_CAPTURED, "callbacks/Mine/feed: builtins:generator")
SOFT = EndOfProcess(FaultKind.SOFT, "process 7 is gone")


def test_the_line_names_step_rate_buffer_episodes_tier_and_what_is_exact() -> None:
    report = ResumeReport(
        tier=Tier.OLDER,
        fault=SOFT,
        step=12_000,
        plan=RecoveryPlan(()),
        position="step",
        promises={"replay_buffer": EXACT, "policy_weights": EXACT, "env_states": NEARLY, "callbacks": GONE},
        facts={"learning_rate": 3e-4, "buffer_rows": 10_000, "episodes": 57},
        reasons=("commit 9 (step 13,000): damaged",),
        changes=("gamma: 0.99 -> 0.9 (the new one is used)",),
        warnings=("numpy is 2.5 and was 2.4: the low bits may differ",),
    )
    assert report.text.splitlines() == [
        (
            "unbroken: goes on at step 12,000 from an older checkpoint · the last process was killed or crashed · learning rate 0.0003"
            " · 10,000 buffer rows · 57 episodes"
            " · exact: policy_weights, replay_buffer; approximate: env_states; not captured: callbacks"
        ),
        "  passed over commit 9 (step 13,000): damaged",
        "  changed: gamma: 0.99 -> 0.9 (the new one is used)",
        "  warning: numpy is 2.5 and was 2.4: the low bits may differ",
        "  env_states is approximate: nobody looked at this environment",
        "  callbacks is not captured: callbacks/Mine/feed: builtins:generator",
    ]


def test_one_reason_for_all_parts_is_said_once() -> None:
    promises = lowered({"callbacks": EXACT, "env_states": EXACT, "logger": EXACT}, ["n_envs: 2 -> 4"])
    report = ResumeReport(
        tier=Tier.NEWEST, fault=SOFT, step=5, plan=RecoveryPlan(()), position="step", promises=promises
    )
    assert report.text.endswith(" · approximate: all parts (n_envs: 2 -> 4)")
    assert report.text.count("n_envs") == 1


def test_parts_with_the_same_reason_stand_on_one_line() -> None:
    promises = {"env_states": NEARLY, "callbacks": GONE, "logger": NEARLY}
    report = ResumeReport(
        tier=Tier.NEWEST, fault=SOFT, step=5, plan=RecoveryPlan(()), position="step", promises=promises
    )
    assert report.text.splitlines()[1:] == [
        "  env_states, logger are approximate: nobody looked at this environment",
        "  callbacks is not captured: callbacks/Mine/feed: builtins:generator",
    ]


def test_episodes_that_nobody_has_counted_are_not_said() -> None:
    report = ResumeReport(
        tier=Tier.NEWEST, fault=SOFT, step=5, plan=RecoveryPlan(()), position="step", facts={"episodes": 0}
    )
    assert "episodes" not in report.text


def test_a_fresh_start_says_where_checkpoints_go() -> None:
    report = ResumeReport(
        tier=Tier.FRESH, fault=EndOfProcess(FaultKind.NONE), step=0, plan=RecoveryPlan(()), where="runs/dqn"
    )
    assert report.line == "unbroken: starts at step 0 · checkpoints in runs/dqn · nothing captured yet"
    assert not report.restored


@pytest.mark.parametrize("kind", FaultKind)
def test_how_the_last_process_ended_is_said_in_plain_words(kind: FaultKind) -> None:
    plan = RecoveryPlan(())
    line = ResumeReport(tier=Tier.NEWEST, fault=EndOfProcess(kind), step=5, plan=plan, position="step").line
    words = {"soft": "killed or crashed", "hard": "restarted", "data": "damaged"}
    assert words.get(kind.value, "goes on at step 5 from the newest checkpoint · nothing") in line


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (None, "from the newest checkpoint"),
        (Chosen.STEP, "from the step that was asked for"),
        (Chosen.BEST, "from the best checkpoint"),
        (Chosen.MIRROR, "from the mirror"),
    ],
)
def test_why_it_is_this_checkpoint_is_said(chosen: Chosen | None, words: str) -> None:
    report = ResumeReport(
        tier=Tier.NEWEST, fault=EndOfProcess(FaultKind.CLEAN), step=5, plan=RecoveryPlan(()), position="step", chosen=chosen
    )  # fmt: skip
    assert report.line == f"unbroken: goes on at step 5 {words} · nothing captured yet"


@pytest.mark.parametrize(
    ("kind", "also"), [(FaultKind.SOFT, ""), (FaultKind.DATA, " · a newer checkpoint is damaged")]
)
def test_a_process_that_lives_is_not_said_to_have_crashed(kind: FaultKind, also: str) -> None:
    fault = EndOfProcess(kind, is_alive=True)
    line = ResumeReport(tier=Tier.NEWEST, fault=fault, step=5, plan=RecoveryPlan(()), position="step").line
    taken = "taken over from a process that lives"
    assert (
        line
        == f"unbroken: goes on at step 5 from the newest checkpoint · {taken}{also} · nothing captured yet"
    )


def test_a_finished_run_that_was_given_more_steps_says_both_ends() -> None:
    report = ResumeReport(
        tier=Tier.NEWEST, fault=EndOfProcess(FaultKind.CLEAN), step=4096, plan=RecoveryPlan(()), position="end", goes_on_to=5000, also=("saves every 2 events",),
    )  # fmt: skip
    assert report.line == (
        "unbroken: had finished at step 4,096, goes on to 5,000 from the newest checkpoint"
        " · saves every 2 events · nothing captured yet"
    )


def test_other_surroundings_leave_nothing_exact_and_nothing_better() -> None:
    found = lowered({"a": EXACT, "b": NEARLY}, ["another CPU"])
    assert found == {"a": Promise(Fidelity.APPROXIMATE, "another CPU"), "b": NEARLY}
