"""Faults that others have had with data in progress (G) and with sessions of tool servers (H), and the tests that show they are none here.

The ids are those of our catalogue of public reports. Each entry names, in a word, what must be right; a test that is renamed or
removed fails here, not in silence. It does not say that a test is good: that can be read in the test.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LOOP = "adapters/test_sampled.py"
LIGHTNING = "adapters/lightning"
TRAINER = "adapters/nemo_gym/trainer"
SERVER = "adapters/nemo_gym/server"

FAULTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "G1": ("each prompt is trained on once per epoch, over any number of kills, with and without what was in flight", (
        f"{TRAINER}/test_queue.py::test_over_kills_at_any_point_each_prompt_is_trained_on_once_per_epoch",
        "nemo_gym/test_whole_tree.py::test_all_is_killed_in_a_collection_and_the_same_command_ends_it",
        "nemo_gym/test_whole_tree.py::test_without_the_logs_of_its_servers_it_ends_the_same_at_a_higher_price",
    )),
    "G2": ("finished groups come back from one source, unfinished ones are sent again, none both", (
        f"{TRAINER}/test_queue.py::test_finished_groups_come_back_and_only_what_is_missing_is_sent_again",
    )),
    "G3": ("of a batch that is half there exactly the other half is generated", (
        f"{TRAINER}/test_queue.py::test_finished_groups_come_back_and_only_what_is_missing_is_sent_again",
    )),
    "G5": ("a restore generates nothing; the next prompt is the next one", (
        f"{TRAINER}/test_queue.py::test_finished_groups_come_back_and_only_what_is_missing_is_sent_again",
        f"{TRAINER}/test_queue.py::test_over_kills_at_any_point_each_prompt_is_trained_on_once_per_epoch",
    )),
    "G6": ("as many updates wherever it was saved; nothing left with steps to go is an error", (
        f"{TRAINER}/test_queue.py::test_wherever_it_is_saved_the_number_of_updates_is_that_of_an_undisturbed_run",
        f"{TRAINER}/test_queue.py::test_the_end_of_the_data_is_said",
        f"{LIGHTNING}/test_faults.py::test_no_batch_is_used_twice_and_none_is_left_out",
    )),
    "G7": ("on two ranks the rest of the epoch and the next one, rank by rank", (
        f"{LOOP}::test_on_two_ranks_what_is_left_of_the_epoch_and_the_next_one_are_the_same",
        f"{LIGHTNING}/test_ranks.py::test_a_killed_rank_changes_nothing",
    )),
    "G8": ("each sample once per epoch", (
        f"{LIGHTNING}/test_faults.py::test_no_batch_is_used_twice_and_none_is_left_out",
    )),
    "G9": ("the global order does not depend on the number of ranks; otherwise another number is refused", (
        f"{LOOP}::test_twice_as_many_ranks_go_on_in_the_global_order",
        "engine/test_ranks.py::test_another_number_of_ranks_goes_on_with_what_there_is_and_says_so",
        f"{LIGHTNING}/test_ranks.py::test_what_happens_to_one_rank_happens_to_all",
    )),
    "G11": ("value head, its optimizer and the reference come back; the step goes on", (
        "adapters/test_loop_ppo.py::test_resumed_it_ends_as_if_it_had_never_stopped",
        "adapters/test_loop_ppo.py::test_with_a_part_left_cold_it_does_not",
    )),
    "G12": ("the same command goes on by itself, and loses less than the interval", (
        f"{LOOP}::test_the_same_command_goes_on_at_the_last_multiple_of_the_interval",
    )),
    "G13": ("of a group only the missing samples are generated; late results of an old attempt are refused", (
        f"{TRAINER}/test_queue.py::test_finished_groups_come_back_and_only_what_is_missing_is_sent_again",
        f"{TRAINER}/test_ledger.py::test_a_late_result_of_an_older_attempt_is_refused",
    )),
    "H1": ("an infrastructure that fails is no reward of zero; three outcomes stay three", (
        f"{TRAINER}/test_gym.py::test_an_infrastructure_that_fails_is_never_a_reward_of_zero",
        f"{TRAINER}/test_gym.py::test_a_tool_server_that_is_killed_during_a_rollout_costs_no_reward",
        f"{TRAINER}/test_ledger.py::test_failures_have_no_reward_and_stay_apart",
        "nemo_gym/test_agent_outcomes.py::test_a_server_that_has_lost_its_memory_makes_no_reward",
    )),
    "H2": ("an export holds exactly what was acknowledged, under its revision", (
        f"{SERVER}/test_operations.py::test_every_cut_under_load_holds_what_was_acknowledged",
        "nemo_gym/test_resources_cuts.py::test_sixteen_clients_and_twenty_cuts",
        "nemo_gym/test_cuts.py::test_every_checkpoint_is_of_one_moment",
    )),
    "H3": ("five turns leave five lines", (
        "nemo_gym/test_side_effects.py::test_five_turns_leave_five_lines_whatever_is_killed_after_the_third",
        "nemo_gym/test_side_effects.py::test_an_agent_that_dies_needs_no_state_of_the_server",
        "nemo_gym/test_side_effects.py::test_without_a_state_after_each_call_a_killed_server_executes_again_what_came_since_the_last",
        "nemo_gym/test_side_effects.py::test_an_agent_as_it_is_begins_at_the_first_turn",
    )),
    "H5": ("an agent with files of its own begins anew, and no tool acts twice", (
        "nemo_gym/test_coding_agent.py::test_after_a_kill_it_begins_anew_and_no_tool_acts_twice",
        "nemo_gym/test_coding_agent.py::test_one_that_comes_back_to_its_old_workspace_does_it_twice_and_gets_no_reward",
        f"{SERVER}/test_restart.py::test_sessions_that_cannot_come_back_say_so",
    )),
    "H6": ("a second start does the rows that are left; another configuration is refused", (
        f"{TRAINER}/test_restore.py::test_an_evaluation_under_a_time_limit_does_only_what_is_left",
        f"{TRAINER}/test_restore.py::test_another_configuration_is_refused_unless_it_is_allowed",
    )),
    "H7": ("a restore costs the same after any number of turns, or replay was declared", (
        f"{SERVER}/test_redone_calls.py::test_from_a_state_no_call_is_done_again_however_many_there_were",
        f"{SERVER}/test_redone_calls.py::test_calls_since_the_last_state_are_done_again_and_counted",
        f"{SERVER}/test_redone_calls.py::test_replay_takes_as_many_calls_as_there_were_and_is_declared",
    )),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_has_its_tests(fault: str) -> None:
    _, tests = FAULTS[fault]
    assert tests
    for test in tests:
        path, _, name = test.partition("::")
        assert name in _defined(TESTS / path), f"{fault}: {test} is gone"


def _defined(path: Path) -> set[str]:
    """Return the names of the tests in a file, which is read and not imported: some need another environment."""
    module = ast.parse(path.read_text())
    return {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
