"""Faults that others have had, and the tests that show they are none here: memory (A), optimizers (B), schedules (C), generators (D),
environments (E), statistics (F), data in progress (G), sessions of tool servers (H), stores (I), saves in the background (J), many starts (K),
what is kept (L), other machines and other settings (M).

The ids are those of our catalogue of public reports. Each entry names, in a word, what must be right; a test that is renamed or
removed, and a kind of the catalogue that has no entry, fails here, not in silence. It does not say that a test is good: that can be
read in the test.
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
SB3 = "adapters/sb3"
RLLIB = "adapters/rllib"
MEMORIES = "faults/test_memories.py::test_its_memory_comes_back_once_and_whole"
LEARNED = "faults/test_learning.py::test_what_is_learned_goes_on"
WORLDS = "faults/test_worlds.py::test_the_world_goes_on"
STARTED = "faults/test_starting_again.py"
SIGNALS = "faults/test_signals.py"
SLICE = "exactness/test_slice.py"
TRAPS = "adapters/test_loop_traps.py"
KEPT = "engine/test_kept.py"
TUNE = "adapters/tune"


def proved(*cells: str) -> tuple[str, ...]:
    """Return the tests that prove these cells of the matrix."""
    return tuple(f"{SLICE}::test_a_killed_run_ends_as_the_undisturbed_one[{cell}]" for cell in cells)


CATALOGUE = {
    "A": {*range(2, 17)} - {4},
    "B": {*range(1, 15)} - {9},
    "C": {*range(2, 12)} - {5},
    "D": {*range(1, 10)},
    "E": {*range(1, 12)} - {3},
    "F": {*range(1, 10)},
    "G": {*range(1, 14)} - {4, 10},
    "H": {*range(1, 8)} - {4},
    "I": {*range(1, 15)} - {2, 4},
    "J": {2, 3, 4},
    "K": {*range(2, 7)},
    "L": {*range(1, 9)},
    "M": {*range(1, 6)},
}
"""The numbers that the catalogue has of each kind; those that it once had beside them were left out of it."""

FAULTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "A2": ("the buffer is saved whatever the callback is told", (
        "faults/test_sb3.py::test_the_buffer_is_saved_though_the_arguments_of_sb3_say_otherwise",
        *proved("DDPG/noise"),
    )),
    "A3": ("half and half is the whole, exploration included", proved("DQN/wrapped-buffer", "DDPG/noise")),
    "A5": ("sum tree, min tree and the largest priority; the next sample and its weights", (
        "buffers/test_prioritized_loop.py::test_a_resumed_run_draws_as_the_undisturbed_one_and_a_cold_one_does_not",
        "adapters/test_cleanrl.py::test_killed_and_started_again_it_ends_as_if_it_had_never_stopped",
    )),
    "A6": ("each id once, in the undisturbed order", (MEMORIES,)),
    "A7": ("what was restored can be saved and restored again, and holds no file of the checkpoint", (
        MEMORIES,
        "capture/test_tensor.py::test_a_restored_tensor_shares_nothing_with_the_snapshot",
    )),
    "A8": ("what is built later does not empty what came back", (MEMORIES,)),
    "A9": ("the memory of a save has a ceiling", (
        "faults/test_large.py::test_a_save_takes_no_more_than_one_copy_or_none_at_all",
        "state/test_staging.py::test_beyond_the_ceiling_nothing_is_copied",
    )),
    "A10": ("a buffer in a file comes back by its contents", (MEMORIES,)),
    "A11": ("as many rows after three starts as after one", (MEMORIES,)),
    "A12": ("a save costs the new rows", (
        f"{SB3}/test_buffers.py::test_a_save_costs_the_new_rows_and_two_chunks_an_array",
        "stateful/test_incremental_rings.py::test_every_checkpoint_is_a_plain_full_copy",
    )),
    "A13": ("beyond 4 GiB", ("faults/test_large.py::test_a_buffer_beyond_four_gibibytes_comes_back",)),
    "A14": ("states are compared, not scores", proved("DDPG/noise")),
    "A15": ("as many updates at each step", (MEMORIES,)),
    "A16": ("finished episodes and the open one", (MEMORIES,)),
    "B1": ("the optimizer holds the live parameters", (
        "capture/test_torch.py::test_one_more_update_is_equal_bit_for_bit", *proved("PPO/past-the-end"),
    )),
    "B2": ("the target comes back, and is no copy of what is trained", (LEARNED, *proved("DQN/target"))),
    "B3": ("moments come back", ("capture/test_torch.py::test_one_more_update_is_equal_bit_for_bit",)),
    "B4": ("weights are those of the checkpoint, in learners and in every runner", (
        f"{RLLIB}/test_exactness.py::test_a_killed_run_ends_as_the_undisturbed_one",
    )),
    "B5": ("weights do not come back without their moments", (
        "capture/test_torch.py::test_one_more_update_is_equal_bit_for_bit",
        "capture/test_torch.py::test_a_cold_optimizer_gives_another_update",
    )),
    "B6": ("an optimizer that its owner's state says nothing of comes back, or is an error", (LEARNED,)),
    "B7": ("undisturbed is resumed, and resumed is not cold", (
        "capture/test_torch.py::test_one_more_update_is_equal_bit_for_bit",
        "capture/test_torch.py::test_a_cold_optimizer_gives_another_update",
    )),
    "B8": ("the number beside the logarithm comes back", (LEARNED, *proved("SAC/schedule"))),
    "B10": ("masters are the same after any number of starts", (
        LEARNED,
        "capture/test_torch.py::test_masters_in_full_precision",
        f"{TRAPS}::test_killed_it_ends_as_if_it_had_never_stopped",
    )),
    "B11": ("moments keep their type, though it is not that of the weights", (
        f"{TRAPS}::test_killed_it_ends_as_if_it_had_never_stopped",
        f"{TRAPS}::test_with_that_part_left_cold_it_does_not",
    )),
    "B12": ("numbers stay numbers", ("capture/test_torch.py::test_hyper_parameters_keep_their_types",)),
    "B13": ("an average goes on", (LEARNED,)),
    "B14": ("an optimizer that is built anew in training comes back on either side", (LEARNED,)),
    "C2": ("rate and momentum of a cycle", (LEARNED, "capture/test_torch.py::test_schedules_go_on")),
    "C3": ("lifetime counters, and the same end", (
        f"{RLLIB}/test_exactness.py::test_a_killed_run_ends_as_the_undisturbed_one",
    )),
    "C4": ("exploration goes on by the whole number of steps", (*proved("DQN/wrapped-buffer"), f"{SB3}/test_zoo.py::test_a_training_of_the_zoo_that_is_killed_ends_as_if_it_had_not_been")),
    "C6": ("no step more at each start", (f"{LIGHTNING}/test_faults.py::test_a_resumed_run_makes_as_many_steps_as_were_asked_for",)),
    "C7": ("no batch twice, none left out", (
        f"{LIGHTNING}/test_faults.py::test_no_batch_is_used_twice_and_none_is_left_out",
    )),
    "C8": ("what was done since the last save is done again, and logged once", (
        f"{STARTED}::test_twenty_starts_leave_as_many_checkpoints_as_one",
        f"{SB3}/test_around.py::test_what_is_around_a_killed_training_ends_as_if_it_had_not_been_killed",
    )),
    "C9": ("no name is used again", (f"{STARTED}::test_twenty_starts_leave_as_many_checkpoints_as_one",)),
    "C10": ("the last observation belongs to the environment that gave it", proved("PPO/schedule")),
    "C11": ("rating, pool and the next opponent", (LEARNED,)),
    "D1": ("python's, numpy's and torch's generators, and those of spaces", (
        *proved("A2C/two"), "capture/test_generators.py::test_the_next_draws_in_a_fresh_process_are_equal",
    )),
    "D2": ("episodes are not those of the beginning", proved("A2C/two", "MuJoCo/Ant")),
    "D3": ("generators come back last", (LEARNED, "capture/test_generators.py::test_they_are_restored_last")),
    "D4": ("generators are plain numbers", (f"{STARTED}::test_generators_are_saved_as_plain_numbers",)),
    "D5": ("a generator of the CPU stays there", (
        f"{STARTED}::test_a_generator_of_the_cpu_stays_there",
    )),
    "D6": ("every device has its generator", ("capture/test_generators.py::test_every_cuda_device",)),
    "D7": ("generators of spaces keep their type and stay apart", (
        "capture/test_gymnasium.py::test_generators_of_spaces_come_back_and_stay_apart",
    )),
    "D8": ("actions drawn from the space", (WORLDS, *proved("SAC/warm-up"))),
    "D9": ("dropout and noise, in an epoch and at its end", (LEARNED,)),
    "E1": ("exact, or refused by name; never different", (
        "capture/test_probe.py::test_what_the_trial_calls_exact_is_exact_in_a_fresh_process",
        "capture/test_probe.py::test_what_the_trial_refuses_goes_wrong_in_a_fresh_process",
    )),
    "E2": ("a pickle that loses the physics is found", (
        "capture/test_probe.py::test_what_the_trial_calls_exact_is_exact_in_a_fresh_process",
        "capture/test_mujoco.py::test_a_simulation_goes_on_in_a_fresh_process",
    )),
    "E4": ("the emulator with its generator", (
        "capture/test_ale.py::test_a_game_goes_on_in_a_fresh_process",
        "capture/test_ale.py::test_the_state_of_the_emulator_alone_would_not_do",
    )),
    "E5": ("cut off at the same step", (WORLDS, "capture/test_gymnasium.py::test_a_chain_of_wrappers_goes_on_in_a_fresh_process")),
    "E6": ("the last observation is used, not the screen", (
        "capture/test_ale.py::test_the_last_observation_comes_back_although_the_emulators_screen_is_stale",
    )),
    "E7": ("the first transition is the next one", (WORLDS, *proved("wrappers/vec-monitor"))),
    "E8": ("the next episode is the next one", (WORLDS,)),
    "E9": ("environments go on in their episodes", (*proved("hand-written loops/sync-next-step"), "capture/test_vectors_run.py::test_a_killed_loop_ends_as_if_never_stopped")),
    "E10": ("a handle into a process is found before training", (
        "capture/test_probe.py::test_a_handle_into_the_memory_of_the_process_is_found_in_another_one",
        "capture/test_probe.py::test_a_capturer_that_saves_a_handle_is_found_before_training",
    )),
    "E11": ("an integrator beside the physics", (WORLDS,)),
    "F1": ("filters of every runner", (f"{RLLIB}/test_exactness.py::test_a_killed_run_ends_as_the_undisturbed_one",)),
    "F2": ("each checkpoint has the statistics of its own step", (
        "faults/test_sb3.py::test_each_checkpoint_has_the_statistics_of_its_own_step",
    )),
    "F3": ("statistics and running returns", proved("PPO/normalized")),
    "F4": ("a mean with its count", (WORLDS,)),
    "F5": ("statistics inside workers are read back", (
        "capture/test_vectors.py::test_statistics_of_wrappers_are_read_back_from_every_worker",
    )),
    "F6": ("patience and best", (f"{LIGHTNING}/test_faults.py::test_early_stopping_stops_at_the_same_epoch",)),
    "F7": ("the best is not replaced by a worse one", (
        f"{SB3}/test_around.py::test_what_is_around_a_killed_training_ends_as_if_it_had_not_been_killed",
    )),
    "F8": ("states of a recurrent policy", proved("contrib/recurrent-gsde")),
    "F9": ("the exploration matrix", proved("SAC/gsde")),
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
    "I1": ("a kill or a power failure during a save leaves one that loads", (
        "repo/test_sigkill.py::test_a_killed_process_loses_nothing",
        "torture/test_slice.py::test_nothing_is_lost_or_wrong_or_hangs",
    )),
    "I3": ("after a kill at any change the newest whole one is taken, and leftovers go", (
        "repo/test_crash.py::test_a_process_that_stops_anywhere_loses_nothing",
    )),
    "I5": ("what is whole counts, and not which place is the nearer one", (
        "engine/test_mirroring.py::test_damage_in_the_first_place_is_mended_from_the_mirror_before_an_older_one_is_taken",
        "engine/test_mirroring.py::test_without_a_mirror_the_same_damage_falls_to_an_older_checkpoint",
        "faults/test_mirror_elsewhere.py::test_a_damaged_part_of_one_rank_comes_back_from_the_mirror_before_an_older_checkpoint_is_taken",
    )),
    "I6": ("a remote copy counts when all of it is there; a reading that was cut short is noticed", (
        "repo/test_copying.py::test_an_interrupted_copy_goes_on_where_it_stopped",
        "store/test_torture_findings.py::test_an_answer_that_is_cut_short_takes_no_lines_with_it",
        "torture/test_slice.py::test_nothing_is_lost_or_wrong_or_hangs",
    )),
    "I8": ("the same rule of what is committed in a directory and in a bucket", (
        "store/test_copy_to_a_bucket.py::test_a_training_goes_on_over_a_copy_as_over_the_run",
        "store/test_copy_to_a_bucket.py::test_there_and_back_again",
    )),
    "I10": ("what is there stays whole until what takes its place is", (
        "torture/test_disk_states.py::test_a_name_may_arrive_before_the_bytes_of_its_file",
        "torture/test_broken_stores.py::test_a_system_that_leaves_out_a_barrier_is_caught_by_what_it_breaks",
        "torture/test_slice.py::test_nothing_is_lost_or_wrong_or_hangs",
    )),
    "I11": ("all ranks go on from the same step", (
        "engine/test_ranks.py::test_a_damaged_part_of_one_rank_sends_all_to_the_same_older_checkpoint",
        "engine/test_ranks.py::test_where_no_checkpoint_is_whole_all_ranks_stop",
    )),
    "I12": ("a full disk costs the oldest, or fails the save and keeps what was there, and an alert metric rises", (
        "engine/test_full_disk.py::test_without_a_free_byte_a_killed_training_starts_saves_and_ends_as_the_undisturbed_one",
        "engine/test_full_disk.py::test_where_it_would_be_in_vain_nothing_goes_and_the_error_says_what_has_to_be_freed",
        "store/test_real_conditions.py::test_a_full_disk_keeps_what_was_there",
        "torture/test_slice.py::test_nothing_is_lost_or_wrong_or_hangs",
        "monitoring/test_failures.py::test_on_a_full_disk_the_metric_rises_and_once_there_is_room_the_run_goes_on",
    )),
    "J2": ("what is being written is loaded by nobody, here or elsewhere, and what was there before is", (
        "faults/test_pending.py::test_until_it_is_committed_the_one_before_is_loaded",
    )),
    "J3": ("a failure in the background is raised at the next call and at the end, and a counter of failures rises", (
        "engine/test_writer.py::test_a_failure_is_raised_once_with_its_cause_and_then_the_next_write_may_try",
        "engine/test_writer.py::test_a_failure_that_was_told_is_told_again_at_the_end",
        "monitoring/test_failures.py::test_a_save_that_fails_in_the_background_lets_an_alert_metric_rise_once",
    )),
    "J4": ("the last save is waited for, and its failure hides no error of the training", (
        "engine/test_engine.py::test_the_interpreter_waits_for_the_last_save_and_leaves_its_last_words",
        "engine/test_engine.py::test_the_error_of_the_training_stays_the_visible_one",
    )),
    "I7": ("the newest that is there, and not the start", (
        f"{KEPT}::test_a_record_whose_checkpoint_is_gone_leads_to_the_newest_that_is_there",
        f"{TUNE}/test_killed_driver.py::test_all_trials_end_as_if_nothing_had_happened",
    )),
    "I9": ("the latest is what is committed, and its step can be saved again", (
        f"{KEPT}::test_a_save_that_failed_is_not_the_latest_and_can_be_made_again",
    )),
    "I13": ("what a save leaves behind is never taken for a checkpoint", (
        f"{KEPT}::test_what_a_save_has_left_behind_is_no_checkpoint",
    )),
    "I14": ("parts of two checkpoints are refused", (f"{KEPT}::test_parts_of_two_checkpoints_are_none",)),
    "K2": ("SIGTERM leaves a committed checkpoint, or ends it within the grace with the last one intact", (
        f"{SIGNALS}::test_a_signal_in_a_step_saves_the_step_and_the_next_start_ends_as_if_there_had_been_none",
        f"{SIGNALS}::test_a_storm_of_signals_until_the_process_has_ended_makes_one_checkpoint",
        f"{SIGNALS}::test_where_no_clean_point_comes_the_grace_ends_it_with_what_was_committed",
        f"{SB3}/test_preemption.py::test_told_to_end_it_saves_once_and_goes_on_as_if_nothing_had_been",
        f"{LIGHTNING}/test_faults.py::test_a_sigterm_saves_what_the_batch_has_come_to",
        "faults/test_clusters.py::test_a_slurm_job_whose_time_is_up_saves_and_goes_back_into_the_queue",
    )),
    "K3": ("the first start and the tenth are one command", (
        f"{STARTED}::test_the_first_start_and_the_tenth_are_one_command",
    )),
    "K4": ("many starts leave no more than one", (
        f"{STARTED}::test_twenty_starts_leave_as_many_checkpoints_as_one",
        "engine/test_preemption.py::test_twenty_ends_by_a_signal_leave_as_many_checkpoints_as_are_kept",
    )),
    "K5": ("one owner saves, also where the whole group is told, and a save that fails stops no requeue", (
        f"{STARTED}::test_a_forked_worker_is_no_second_trainer",
        f"{SIGNALS}::test_workers_that_were_forked_do_as_ever_and_only_the_trainer_saves",
        "engine/test_preemption.py::test_a_save_that_fails_is_said_and_keeps_nothing_from_ending",
    )),
    "K6": ("a few lines make a program in CleanRL's manner exact", (
        "adapters/test_cleanrl.py::test_it_is_fewer_than_fifteen_lines_away_from_the_program_without",
        "adapters/test_cleanrl.py::test_killed_and_started_again_it_ends_as_if_it_had_never_stopped",
    )),
    "L1": ("the latest loads whatever its score", (
        f"{KEPT}::test_the_latest_loads_whatever_its_score",
        f"{TUNE}/test_failures.py::test_the_checkpoint_that_tune_names_loads_whatever_its_score",
    )),
    "L2": ("the last are kept beside the best, and the last is taken", (
        f"{KEPT}::test_the_last_are_kept_beside_the_best_and_the_last_is_taken",
        f"{TUNE}/test_failures.py::test_the_last_are_kept_and_the_best",
    )),
    "L3": ("what belongs to another run is never deleted", (
        f"{KEPT}::test_who_goes_on_from_another_run_leaves_it_as_it_is",
    )),
    "L4": ("one best over all starts", (f"{KEPT}::test_the_best_is_remembered_over_a_restart",)),
    "L5": ("what was deleted by hand is not missed", (
        f"{KEPT}::test_checkpoints_that_somebody_has_deleted_are_not_missed",
    )),
    "L6": ("as many trials as were asked for, each as undisturbed", (
        f"{TUNE}/test_killed_driver.py::test_all_trials_end_as_if_nothing_had_happened",
    )),
    "L7": ("after a fail fast every trial goes on from its own last checkpoint", (
        f"{TUNE}/test_failures.py::test_after_a_fail_fast_every_trial_goes_on_from_its_own_last_checkpoint",
    )),
    "L8": ("a trial's own newest checkpoint counts, not what the experiment remembers", (
        f"{TUNE}/test_killed_driver.py::test_all_trials_end_as_if_nothing_had_happened",
        f"{TUNE}/test_trial.py::test_with_a_pointer_of_its_own_it_goes_on_from_its_newest",
    )),
    "M1": ("plain data that every Python reads; a schedule's code is the script's, and another one is told by name", (
        "compat/test_pythons.py::test_what_sb3_has_saved_every_python_reads",
        "compat/test_pythons.py::test_what_one_python_has_saved_another_goes_on_with",
        f"{SB3}/test_changes.py::test_a_new_value_wins_and_is_reported",
    )),
    "M2": ("another network, algorithm or environment is refused before anything is touched", (
        f"{SB3}/test_changes.py::test_what_cannot_go_on_is_refused_and_nothing_is_touched",
    )),
    "M3": ("another number of environments follows its rule, and the start says so", (
        f"{SB3}/test_resizing.py::test_what_does_not_depend_on_the_number_comes_back",
        f"{SB3}/test_resizing.py::test_rows_are_carried_over_in_their_order_the_newest_as_far_as_they_fit",
        f"{SB3}/test_resizing.py::test_a_rollout_in_progress_is_left_out_and_said",
        f"{SB3}/test_resizing.py::test_rows_that_belong_to_their_environment_are_refused_by_name",
    )),
    "M4": ("ranks that have changed places find their parts, and without a place that all share the start stops", (
        "engine/test_ranks.py::test_ranks_that_have_changed_places_find_their_parts",
        "engine/test_ranks.py::test_a_rank_with_another_root_does_not_take_part",
    )),
    "M5": ("what was saved on another device, recurrent states among it, has the same values on this one", (
        "capture/test_tensor.py::test_what_was_saved_on_a_device_that_is_not_here_comes_back_on_ours",
    )),
}  # fmt: skip


def test_each_fault_of_the_catalogue_is_here() -> None:
    assert set(FAULTS) == {f"{kind}{number}" for kind, numbers in CATALOGUE.items() for number in numbers}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_has_its_tests(fault: str) -> None:
    _, tests = FAULTS[fault]
    assert tests
    for test in tests:
        path, _, name = test.partition("::")
        name, _, cell = name.partition("[")
        assert name in _defined(TESTS / path), f"{fault}: {test} is gone"
        assert path != SLICE or cell.removesuffix("]") in _sliced(), f"{fault}: {test} is not in the slice"


def _parsed(path: Path) -> list[ast.stmt]:
    """Return what a file of tests says. It is read and not imported: some need another environment."""
    return ast.parse(path.read_text()).body


def _defined(path: Path) -> set[str]:
    return {node.name for node in _parsed(path) if isinstance(node, ast.FunctionDef)}


def _sliced() -> set[str]:
    """Return the cells of the matrix that the tests prove."""
    (cells,) = (
        ast.literal_eval(node.value)
        for node in _parsed(TESTS / SLICE)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SLICE"
    )
    return set(cells)
