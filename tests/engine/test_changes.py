"""Three values side by side: at birth, now, and in the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from unbroken.engine.changes import (
    Change,
    Verdict,
    find_changes,
    leaves,
    named,
    usual_verdict,
    within,
)
from unbroken.state.policy import Policy
from unbroken.state.snapshot import Snapshot
from unbroken.state.walk import capture

POLICY = Policy()


class Agent:
    def __init__(self, **settings: Any) -> None:
        self.gamma = 0.99
        self.steps = 0
        self.parts: list[Any] = [Part()]
        self.schedule: Any = lambda x: x * 0.5
        self.__dict__.update(settings)


class Part:
    def __init__(self, name: str = "part") -> None:
        self.name = name


class Other(Part):
    pass


def skeleton(**settings: Any) -> Snapshot:
    return capture({"agent": Agent(**settings)}, POLICY, contents=False)


def changes(now: Snapshot, saved: Snapshot | None = None) -> dict[str, tuple[str, Verdict]]:
    found = find_changes(skeleton(), now, saved or skeleton(steps=500))
    return {change.place: (str(change), usual_verdict(change)) for change in found}


def test_nothing_changed_nothing_found() -> None:
    assert changes(skeleton()) == {}


def test_a_setting_is_found_and_the_new_value_wins() -> None:
    assert changes(skeleton(gamma=0.9)) == {"agent/gamma": ("agent/gamma: 0.99 -> 0.9", Verdict.NEW_VALUE)}


def test_a_value_that_training_changed_is_state() -> None:
    assert changes(skeleton(steps=7))["agent/steps"][1] is Verdict.SAVED


def test_what_the_checkpoint_holds_already_is_no_change() -> None:
    assert changes(skeleton(gamma=0.9), skeleton(gamma=0.9, steps=500)) == {}


def test_a_function_with_other_code_is_found() -> None:
    ((text, verdict),) = changes(skeleton(schedule=lambda x: x * 0.25)).values()
    assert "schedule" in text
    assert verdict is Verdict.NEW_VALUE


def test_a_function_instead_of_a_value_is_found() -> None:
    ((_, verdict),) = changes(skeleton(gamma=max)).values()
    assert verdict is Verdict.NEW_VALUE


def test_an_object_of_another_class_is_one_error_and_not_one_for_each_attribute() -> None:
    found = changes(skeleton(parts=[Other("other")]))
    assert list(found) == ["agent/parts/0"]
    assert found["agent/parts/0"][1] is Verdict.ERROR


def test_an_object_more_is_told_as_such() -> None:
    found = changes(skeleton(parts=[Part(), Part("extra")]))
    assert found["agent/parts"] == ("agent/parts: list of 1 -> list of 2", Verdict.ERROR)


def test_an_attribute_more_starts_fresh() -> None:
    ((_, verdict),) = changes(skeleton(progress=Part("bar"))).values()
    assert verdict is Verdict.FRESH


def test_references_are_compared_by_place_so_that_numbers_may_shift() -> None:
    shared = Part()

    def state(first: Callable[[], list[Any]]) -> Snapshot:
        return capture({"a": first(), "b": [shared, shared]}, POLICY, contents=False)

    def none() -> list[Any]:
        return [Part("x")]

    def more() -> list[Any]:
        part = Part("x")
        return [part, part]

    found = find_changes(state(none), state(more), state(none))
    assert [change.place for change in found] == ["a"]


class Box:
    def __init__(self, size: int = 3, left: int = 0) -> None:
        self.size = [size, "x"]
        self.left = left


def spaces(first: Box, *others: Box) -> Snapshot:
    return capture({"a": [first], "b": list(others)}, POLICY, contents=False)


def test_equal_objects_are_as_good_as_one_that_is_met_twice() -> None:
    once, twice = Box(), Box()
    shared, apart = spaces(once, once, once), spaces(once, twice, twice)
    assert find_changes(shared, apart, shared) == []
    assert find_changes(apart, shared, apart) == []


def test_what_is_in_them_is_compared_all_the_same() -> None:
    once, other = Box(), Box(left=7)
    shared, apart = spaces(once, once, once), spaces(once, other, other)
    found = [str(change) for change in find_changes(shared, apart, shared)]
    assert found == ["b/0/left: 0 -> 7", "b/1/left: 0 -> 7"]


def test_references_that_lead_elsewhere_are_compared_by_what_is_there() -> None:
    def state(second: Box) -> Snapshot:
        first = Box()
        return capture({"a": [first, second], "b": [first], "c": [second]}, POLICY, contents=False)

    def crossed(second: Box) -> Snapshot:
        first = Box()
        return capture({"a": [first, second], "b": [second], "c": [first]}, POLICY, contents=False)

    assert find_changes(state(Box()), crossed(Box()), state(Box())) == []
    found = find_changes(state(Box(left=1)), crossed(Box(left=1)), state(Box(left=1)))
    assert [str(change) for change in found] == ["b/0/left: 0 -> 1", "c/0/left: 1 -> 0"]


def test_a_short_list_of_plain_values_is_one_setting() -> None:
    found = changes(skeleton(widths=[64, 64]), skeleton(steps=500))
    assert found["agent/widths"][0] == "agent/widths: nothing -> [64, 64]"
    (change,) = find_changes(skeleton(widths=[64, 64]), skeleton(widths=[32, 64]), skeleton(widths=[64, 64]))
    assert str(change) == "agent/widths: [64, 64] -> [32, 64]"
    assert usual_verdict(change) is Verdict.NEW_VALUE


@pytest.mark.parametrize(
    ("names", "meant"),
    [
        ({"gamma"}, True),
        ({"model/gamma"}, True),
        ({"model"}, True),
        ({"gam"}, False),
        ({"mod"}, False),
        (set[str](), False),
    ],
)
def test_a_person_names_a_change_by_name_place_or_a_place_above(names: set[str], meant: bool) -> None:
    assert named(Change("model/gamma", "c", None, None, None), names) is meant


def test_within_is_no_prefix_of_letters() -> None:
    assert within("a/b/c", {"a/b"})
    assert within("a/b", {"a/b"})
    assert not within("a/bc", {"a/b"})


def test_the_name_of_a_change_is_the_key_and_not_its_escape() -> None:
    assert Change("logger/time~1fps~0", "c", None, None, None).name == "time/fps~"


def test_shapes_and_dtypes_show_and_contents_do_not() -> None:
    np = pytest.importorskip("numpy")

    def texts(array: Any) -> list[str]:
        return [leaf.text for leaf in leaves(capture({"x": array}, POLICY, contents=False)).values()]

    assert texts(np.zeros((2, 3))) == texts(np.ones((2, 3))) == ["array <f8 [2, 3]"]
    assert texts(np.zeros((2, 4))) != texts(np.zeros((2, 3)))
    assert texts(np.zeros((2, 3), np.float32)) != texts(np.zeros((2, 3)))


def test_a_parameter_of_another_shape_is_a_structure() -> None:
    torch = pytest.importorskip("torch")
    from unbroken.capture.source import policy_of_loaded

    def net(width: int, rate: float = 0.1) -> Snapshot:
        module = torch.nn.Linear(4, width)
        optimizer = torch.optim.SGD(module.parameters(), lr=rate)
        return capture({"net": module, "optimizer": optimizer}, policy_of_loaded(), contents=False)

    found = {c.place: usual_verdict(c) for c in find_changes(net(8), net(9), net(8))}
    assert found["net/_parameters/weight"] is Verdict.ERROR
    assert found["net/_parameters/bias"] is Verdict.ERROR
    rates = {c.place: usual_verdict(c) for c in find_changes(net(8), net(8, 0.2), net(8))}
    assert set(rates.values()) == {Verdict.NEW_VALUE}
    assert any(place.endswith("param_groups/0/lr") for place in rates)


def new_attributes(now: Snapshot, saved: Snapshot | None = None) -> list[str]:
    return [c.place for c in find_changes(skeleton(), now, saved or skeleton(steps=500)) if c.new_attribute]


def test_an_attribute_that_only_a_newer_class_has_is_told_from_an_item_of_data() -> None:
    assert new_attributes(skeleton(checked=False)) == ["agent/checked"]
    assert new_attributes(skeleton(parts=[Part(), Part()])) == []
    assert new_attributes(skeleton(checked=False), skeleton(checked=True)) == []


def test_the_attributes_of_another_object_are_not_new_ones() -> None:
    assert new_attributes(skeleton(parts=[Other()])) == []
