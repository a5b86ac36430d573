"""Orders of writers that are too long to be searched, drawn: four processes, several faults, every operation.

What must hold is what `test_fencing_model.py` says; Hypothesis shortens an order that breaks it.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from .test_fencing_model import KINDS, reads, saves, search, search_commits

schedules = st.lists(st.integers(0, 11), max_size=300)


@settings(max_examples=60, deadline=None)
@given(drawn=schedules, faults=st.integers(0, 3))
def test_three_processes_take_the_run_from_a_fourth_and_one_looks(drawn: list[int], faults: int) -> None:
    search_commits(3, saves=2, reader=True, drawn=drawn, faults=faults, kinds=KINDS)


@settings(max_examples=25, deadline=None)
@given(drawn=schedules)
def test_whole_checkpoints_are_saved_deleted_and_read_by_three_processes(drawn: list[int]) -> None:
    search(saves(3, keep_last=1), saves(2, keep_last=2), saves(2), reads, drawn=drawn)
