"""A benchmark that compares the wrong thing proves nothing: what changes, what is blank, what is equal."""

from __future__ import annotations

import copy

import pytest

from benchmarks.workloads import Model, Vectors, Workload, flatten, unflatten


@pytest.fixture(params=["with a buffer", "without"])
def workload(request: pytest.FixtureRequest) -> Workload:
    made: Workload = Vectors(50, 5) if request.param == "with a buffer" else Model(2, 8)
    made.fill()
    return made


def test_changed_is_all_that_a_training_writes(workload: Workload) -> None:
    before = {name: array.copy() for name, array in workload.arrays().items()}
    workload.train()
    # Marked in the live memory itself, since `changed` gives views of it.
    after = {name: array.copy() for name, array in workload.arrays().items()}
    for piece in workload.changed():
        piece[:] = 255
    for name, array in workload.arrays().items():
        differs = before[name] != after[name]
        assert (array[differs] == 255).all(), name


def test_a_reset_leaves_nothing_behind(workload: Workload) -> None:
    workload.reset()
    assert all(not array.any() for array in workload.arrays().values())


def test_what_was_taken_from_a_copy_is_equal(workload: Workload) -> None:
    expected, state = workload.digests(), copy.deepcopy(workload.state())
    workload.reset()
    assert workload.digests() != expected
    workload.take(state)
    assert workload.digests() == expected


def test_flat_tensors_become_the_state_again(workload: Workload) -> None:
    expected, state = workload.digests(), copy.deepcopy(workload.state())
    workload.reset()
    workload.take(unflatten(flatten(state), workload.template(), state["counters"]))
    assert workload.digests() == expected


def test_one_byte_makes_a_difference(workload: Workload) -> None:
    expected = workload.digests()
    name, array = next(iter(workload.arrays().items()))
    array[0] ^= 1
    assert {key for key, value in workload.digests().items() if value != expected[key]} == {name}
