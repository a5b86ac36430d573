"""What is said of two states: how much was compared, what comes first, and what "equal" does not cover."""

from __future__ import annotations

import random

import numpy as np
import pytest

from unbroken.capture.generators import GlobalGenerators
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.report.comparison import classes_told, compared, comparison_table, off_by, promises_told
from unbroken.state.snapshot import Promise, Snapshot
from unbroken.types import Fidelity


def snapshot(**roots: object) -> Snapshot:
    return GraftSource(roots, policy_of_loaded()).capture()


def test_equal_components_say_how_many_leaves_were_compared() -> None:
    one, other = (snapshot(a=np.zeros(3), b=[1, "x", [2.5]]) for _ in range(2))
    (row,) = compared(one, other)
    assert (row.equal, row.leaves) == (True, 4)
    table = comparison_table([row])
    assert [column.name for column in table.columns] == ["component", "result", "leaves"]


def test_weights_come_before_other_attributes_of_a_module() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    one = torch.nn.Sequential(torch.nn.Linear(2, 2))
    other = torch.nn.Sequential(torch.nn.Linear(2, 2))
    other.eval()  # `training` stands before the parameters
    rows = {row.component: row for row in compared(snapshot(net=one), snapshot(net=other))}
    row = rows["policy_weights"]
    assert row.first is not None
    assert "/weight/" in row.first.place
    assert row.first.distance is not None
    assert {d.place for d in row.differences} >= {"net/training"}


@pytest.mark.parametrize("fidelity", [Fidelity.APPROXIMATE, Fidelity.NOT_CAPTURED])
def test_equal_is_not_said_alone_of_what_is_not_exact(fidelity: Fidelity) -> None:
    one, other = snapshot(a=1), snapshot(a=1)
    other.promises["training_state"] = Promise(fidelity, "a: nobody knows")
    rows = compared(one, other)
    plain = comparison_table(rows).plain()
    assert "equal" in plain
    assert plain.splitlines()[1].split("  ")[1] != "equal"
    assert promises_told(rows) == [f"training_state is {fidelity.value}: a: nobody knows"]


class First:
    value = 1


class Second:
    value = 1


def test_two_algorithms_differ_by_their_class_in_plain_words() -> None:
    rows = compared(snapshot(model=First()), snapshot(model=Second()))
    assert classes_told(rows) == ["model: First in A, Second in B"]
    assert "another class: First -> Second" in comparison_table(rows).plain()


def test_a_difference_of_words_of_a_generator_has_no_size() -> None:
    torch = pytest.importorskip("torch")

    def drawn(seed: int) -> Snapshot:
        torch.manual_seed(seed)
        own = [random.Random(seed), np.random.default_rng(seed), torch.Generator().manual_seed(seed)]
        return snapshot(globals=GlobalGenerators(), own=own, hash=10**12 + seed, x=float(seed))

    rows = {row.component: row for row in compared(drawn(1), drawn(2))}
    rng = rows["rng_states"]
    assert {"|u1[5056]", "<u4[625]"} & {leaf.before for leaf in rng.differences}
    assert {leaf.distance for leaf in rng.differences} == {None}
    assert rng.first is not None
    assert off_by(rng.first) == "other contents"
    sizes = {leaf.place: leaf.distance for leaf in rows["training_state"].differences}
    assert len([place for place in sizes if place.startswith("own/")]) >= 3
    assert {place: size for place, size in sizes.items() if size is not None} == {"x": 1.0}


def test_an_object_that_is_missing_is_told_by_its_name_alone() -> None:
    rows = compared(snapshot(a=First()), snapshot(b=1))
    told = [off_by(leaf) for row in rows for leaf in row.differences]
    assert told == ["First -> absent", "absent -> 1"]
