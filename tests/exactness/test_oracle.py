"""The oracle says no where it must: else its yes would mean nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from exactness.oracle import Oracle, moment
from exactness.training import digest
from tests.exactness.false_cells import BY_KEY


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    made = Oracle(tmp_path_factory.mktemp("false"), cells="tests.exactness.false_cells")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("another-each-time", "weights policy"),
        ("unseeded-actions", "draws action differ"),
        ("nothing-cold", "model/_n_updates left cold changes nothing"),
        ("cannot-be-built", "ValueError: this cell cannot be built"),
        ("promised-less", "promised less than exact"),
        ("says-nothing", "nothing says that it is not exact"),
        ("exact-after-all", "it ends as the undisturbed run, so it is exact after all"),
        (
            "another-reason",
            "another reason than 'out of reach' is told: env_states approximate: it reads the clock",
        ),
        ("begun-anew", "nothing was restored"),
        ("goes-on", "it went on"),
        ("refused-unsaid", "nothing says that it is not exact, and then: "),
    ],
)
def test_a_cell_that_does_not_hold_is_found_with_its_reason(name: str, reason: str, oracle: Oracle) -> None:
    row = oracle.prove(BY_KEY[f"false/{name}"])
    assert not row.holds
    assert reason in row.reason


def test_a_cell_that_holds_says_where_it_was_killed_and_what_was_compared(oracle: Oracle) -> None:
    row = oracle.prove(BY_KEY["false/true"])
    assert row.holds, row.reason
    assert row.steps == 96 and 0 < row.resumed <= row.killed < 96
    assert row.leaves > 100
    assert row.ways == "its attributes"


def test_less_than_exact_holds_with_its_reason_where_the_resumed_run_ends_otherwise(oracle: Oracle) -> None:
    row = oracle.prove(BY_KEY["false/approximate"])
    assert row.holds, row.reason
    assert "it reads the clock" in row.reason
    assert 0 < row.resumed <= row.killed
    assert row.cold == ""


def test_the_seed_draws_the_kill_within_the_cells_window() -> None:
    cell = BY_KEY["false/true"]
    moments = [moment(cell, 10_000, seed=seed) for seed in range(20)]
    assert moments == [moment(cell, 10_000, seed=seed) for seed in range(20)]
    assert len(set(moments)) > 10
    assert min(moments) > 4000 and max(moments) <= 8000


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.zeros(2), -np.zeros(2)),
        (np.zeros(2), np.zeros(2, np.float32)),
        (np.zeros(2), np.zeros((2, 1))),
        ([1, 2], [2, 1]),
        ({"a": [1], "b": []}, {"a": [], "b": [1]}),
        (torch.tensor([1.0]), torch.tensor([1.0 + 2**-23])),
        (1.0, np.nextafter(1.0, 2.0)),
    ],
    ids=str,
)
def test_one_bit_makes_another_digest(one: object, other: object) -> None:
    assert digest(one) != digest(other)
    assert digest(one) == digest(one)
