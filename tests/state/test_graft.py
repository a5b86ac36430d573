"""The plan touches nothing, names what does not fit, and takes no code from a document."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from unbroken.errors import CorruptObject, NotCapturable, StateMismatch
from unbroken.state.diff import compare
from unbroken.state.graft import plan
from unbroken.state.nodes import (
    Array,
    Class,
    Coded,
    Dict,
    Function,
    Link,
    Method,
    Object,
    ObjectArray,
    Opaque,
    Packed,
    Partial,
    Ref,
    Set,
    Tuple,
    Value,
    View,
    class_name,
)
from unbroken.state.policy import Phase, Policy
from unbroken.state.snapshot import Component, Snapshot
from unbroken.state.walk import capture


class Part:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def work(self) -> int:
        return 1


class Network:
    def __init__(self, size: int) -> None:
        self.weights = np.zeros(size)


class Trainer:
    def __init__(self, size: int = 4) -> None:
        self.network = Network(size)
        self.target_network = Network(size)
        self.best = self.network
        self.step = 0


POLICY = Policy(
    structural=frozenset({class_name(Network)}),
    components={class_name(Network): "policy_weights"},
    component_keys={"target_network": "target_weights"},
    tables={class_name(Network): lambda net: {"weights": net.weights}},
)


def wipe(path: str) -> None:
    """What a hostile document would like to have called."""
    raise AssertionError(f"wiped {path}")


class Bomb:
    """What a hostile document would like to have built."""

    def __del__(self) -> None:
        raise AssertionError("built")


def forged(value: Value) -> Snapshot:
    root = Object(c=class_name(Part), a={"x": value})
    return Snapshot({"training_state": Component("training_state", {"root": root})})


COMMAND = Tuple(v=["touch /nonexistent/owned"])
FORGERIES: dict[str, Value] = {
    "os.system": Function(q="os:system"),
    "posix.system": Function(q="posix:system"),
    "exec": Function(q="builtins:exec"),
    "a function of a trusted package": Function(q="numpy:load"),
    "partial of exec": Partial(f=Function(q="builtins:exec"), a=COMMAND, k=Dict(v={})),
    "partial of a function that is held": Partial(f=Function(q=f"{__name__}:wipe"), a=COMMAND, k=Dict(v={})),
    "a function of the owner's module": Function(q=f"{__name__}:wipe"),
    "Popen": Object(c="subprocess:Popen", a={"args": "true"}),
    "TemporaryDirectory": Object(c="tempfile:TemporaryDirectory", a={"name": "/"}),
    "an object with __del__": Object(c=f"{__name__}:Bomb"),
    "a class": Class(q="subprocess:Popen"),
    "a foreign method": Method(n="system", of=Object(c="os:_Environ")),
    "a method nobody holds": Method(n="work", of=Ref(to=0)),
    "a metaclass": Object(c="builtins:type"),
    "a pickle of os.system": Opaque(c="x", data=b"cposix\nsystem\n(S'true'\ntR."),
    "an unknown codec": Coded(k="no.such"),
    "a class not loaded": Object(c="antigravity:X"),
    "process attributes": Object(c="builtins:object", a={"x": 1}),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_documents_are_refused_in_the_plan(name: str) -> None:
    for module in (os, subprocess, tempfile):  # loaded, so that not finding them is not the reason
        assert sys.modules[module.__name__] is module
    twin = Part(x=None)
    graft = plan(forged(FORGERIES[name]), {"root": twin}, POLICY)
    levels = {d.level for d in graft.differences}
    assert levels & {"error", "untrusted"}, graft.differences
    assert all("antigravity" not in m for m in sys.modules)
    assert twin.__dict__ == {"x": None}


def test_a_document_puts_nothing_in_front_of_a_method() -> None:
    twin = Part(x=wipe, keep=functools.partial(wipe, "mine"))
    root = Object(
        c=class_name(Part), a={"x": Function(q=f"{__name__}:wipe"), "work": Link(to="root/x", in_="")}
    )
    graft = plan(
        Snapshot({"training_state": Component("training_state", {"root": root})}), {"root": twin}, POLICY
    )
    assert [d.place for d in graft.errors] == ["root"]
    with pytest.raises(StateMismatch, match="method"):
        graft.apply()
    assert twin.work() == 1


def test_what_a_program_has_put_in_front_of_a_method_comes_back() -> None:
    """As environments do that set at a reset what their class has a method for."""
    saved, twin = Part(work={"a": 1}), Part()
    plan(capture({"root": saved}, POLICY), {"root": twin}, POLICY).apply()
    assert twin.__dict__ == {"work": {"a": 1}}


def test_a_partial_that_the_program_holds_may_come_back_with_other_arguments() -> None:
    saved, twin = Part(p=functools.partial(wipe, "a")), Part(p=functools.partial(wipe, "b"))
    plan(capture({"root": saved}, POLICY), {"root": twin}, POLICY).apply()
    assert twin.__dict__["p"].args == ("a",)


def test_a_declared_function_may_be_named_before_the_program_holds_it() -> None:
    policy = Policy(functions=frozenset({f"{__name__}:wipe"}))
    twin = Part(p=None)
    plan(capture({"root": Part(p=functools.partial(wipe, "a"))}, policy), {"root": twin}, policy).apply()
    assert twin.__dict__["p"].func is wipe


def test_a_pickle_that_cannot_be_loaded_is_an_error_of_the_plan() -> None:
    graft = plan(
        forged(Opaque(c="gone:Gone", data=b"cgone\nGone\n.")), {"root": Part(x=None)}, POLICY, trusted=True
    )
    assert [d.place for d in graft.errors] == ["root/x"]


BROKEN: dict[str, Value] = {
    "rows of an array that nobody has": Array(d="<f8", s=(1 << 50,), rows=0),
    "objects that nobody has": ObjectArray(s=(1 << 50,), v=[], rows=0),
    "no objects in a shape that there is not": ObjectArray(s=(0, 1 << 62, 1 << 62), v=[]),
    "a dtype for Python's compiler": Array(d="(1000,)f8", s=(0,)),
    "a dimension beyond all": Array(d="<f8", s=(0, 1 << 70)),
    "an empty view of a dimension beyond all": View(
        of=Array(d="<f8", s=(1,), data=b"12345678"), d="<f8", s=(0, -5), st=(8, 8)
    ),
    "a dtype without end": Array(d="[" * 5000, s=(1,), data=b"12345678"),
    "array of another size": Array(d="<f8", s=(3,), data=b"1234567"),
    "array of negative size": Array(d="<f8", s=(-1,), data=b"12345678"),
    "blob out of range": Array(d="<f8", s=(2000,), b=7),
    "dtype of objects": Array(d="|O", s=(1,), data=b"12345678"),
    "no dtype": Array(d="f8); import os", s=(1,), data=b"12345678"),
    "packed of another length": Packed(t="f", n=3, data=b"12345678"),
    "unhashable member": Set(v=[Dict(v={})]),
    "unhashable key": Dict(kv=[(Dict(v={}), 1)]),
    "view that leaves its array": View(
        of=Array(d="<f8", s=(1,), data=b"12345678"), off=4, d="<f8", s=(1,), st=(8,)
    ),
    "too few objects": ObjectArray(s=(3,), v=[1]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_documents_that_contradict_themselves_are_corrupt(name: str) -> None:
    with pytest.raises(CorruptObject):
        plan(forged(BROKEN[name]), {"root": Part(x=None)}, POLICY)


@pytest.mark.parametrize("node", [Ref(to=99), Link(to="nowhere", in_="policy_weights")])
def test_a_reference_to_nothing_is_an_error(node: Value) -> None:
    graft = plan(forged(node), {"root": Part(x=None)}, POLICY)
    assert [d.place for d in graft.errors] == ["root/x"]


def test_components_open_where_their_objects_are_met() -> None:
    snapshot = capture({"trainer": Trainer()}, POLICY)
    assert list(snapshot.components) == ["training_state", "policy_weights", "target_weights"]
    assert list(snapshot.components["policy_weights"].roots) == ["trainer/best"]
    assert list(snapshot.components["target_weights"].roots) == ["trainer/target_network"]
    root = snapshot.components["training_state"].roots["trainer"]
    assert isinstance(root, Object)
    assert root.a["network"] == Link(to="trainer/best", in_="policy_weights")
    assert snapshot.components["policy_weights"].tensors == {
        "trainer/best": {"weights": "trainer/best/weights"}
    }


def test_a_component_below_a_root_is_restored_without_that_root() -> None:
    saved, twin = Trainer(), Trainer()
    saved.network.weights += 1
    saved.target_network.weights += 2
    saved.step = 5
    weights = twin.network.weights
    snapshot = capture({"trainer": saved}, POLICY)
    del snapshot.components["training_state"]  # as a rank that is new gets to see it
    graft = plan(snapshot, {"trainer": twin}, POLICY)
    assert graft.errors == []
    graft.apply()
    assert twin.network.weights is weights
    np.testing.assert_array_equal(twin.network.weights, np.ones(4))
    np.testing.assert_array_equal(twin.target_network.weights, np.full(4, 2))
    assert twin.step == 0


def test_a_component_below_a_root_that_has_no_such_place_is_named() -> None:
    snapshot = capture({"trainer": Trainer()}, POLICY)
    del snapshot.components["training_state"]
    graft = plan(snapshot, {"trainer": Part(other=1)}, POLICY)
    lost = [d.place for d in graft.differences if d.level == "lost"]
    assert lost == ["trainer/best", "trainer/target_network"]


def test_a_restore_keeps_every_object_of_the_twin() -> None:
    saved, twin = Trainer(), Trainer()
    saved.network.weights += 1
    saved.step = 5
    network, weights = twin.network, twin.network.weights
    plan(capture({"trainer": saved}, POLICY), {"trainer": twin}, POLICY).apply()
    assert twin.step == 5
    assert twin.network is network is twin.best
    assert twin.network.weights is weights
    assert weights.tolist() == [1, 1, 1, 1]
    assert twin.target_network.weights.tolist() == [0, 0, 0, 0]


def test_a_plan_touches_nothing() -> None:
    saved, twin = Trainer(), Trainer()
    saved.network.weights += 1
    saved.step = 5
    before = capture({"trainer": twin}, POLICY)
    plan(capture({"trainer": saved}, POLICY), {"trainer": twin}, POLICY)
    assert compare(before, capture({"trainer": twin}, POLICY)) == []


def test_structural_objects_are_never_built() -> None:
    saved, twin = Trainer(), Trainer()
    twin.target_network = None  # type: ignore[assignment]
    graft = plan(capture({"trainer": saved}, POLICY), {"trainer": twin}, POLICY)
    assert [d.place for d in graft.errors] == ["trainer/target_network"]
    with pytest.raises(StateMismatch, match="target_network"):
        graft.apply()


class OwnAttributes:
    """A captor that reads off the object itself what is to be walked: of an empty one, nothing."""

    def attributes(self, obj: Any) -> frozenset[str]:
        return frozenset(vars(obj)) - {"clock"}

    def capture(self, obj: Any, walk: Any) -> dict[str, Value]:
        return {}

    def plan(self, extra: dict[str, Value], obj: Any, graft: Any) -> None:
        """There is nothing more."""


def test_an_object_that_is_built_takes_all_its_attributes_whatever_its_captor_says_of_an_empty_one() -> None:
    captor = OwnAttributes()
    policy = Policy(
        captors=(lambda obj: captor if isinstance(obj, Part) else None,), trusted=frozenset({"tests"})
    )
    twin: dict[str, Any] = {}
    saved = capture({"it": {"part": Part(value=0.5, name="a", clock=1)}}, policy)
    plan(saved, {"it": twin}, policy).apply()
    assert vars(twin["part"]) == {"value": 0.5, "name": "a"}


def test_writes_run_in_the_order_of_their_phases() -> None:
    graft = plan(capture({}, POLICY), {}, POLICY)
    order: list[str] = []
    graft.write(order.append, "generators", phase=Phase.GENERATORS)
    graft.write(order.append, "plain")
    graft.write(order.append, "world", phase=Phase.WORLD)
    graft.apply()
    assert order == ["world", "plain", "generators"]


def test_a_kept_setting_keeps_the_value_of_the_program() -> None:
    saved, twin = Part(lr=0.1, step=7), Part(lr=0.2, step=0)
    graft = plan(capture({"root": saved}, POLICY), {"root": twin}, POLICY, keep=["root/lr"])
    graft.apply()
    assert twin.__dict__ == {"lr": 0.2, "step": 7}
    assert [(d.level, d.place) for d in graft.differences] == [("kept", "root/lr")]


class Rate:
    """A number that falls, as a schedule does. It has no constructor that could be called."""

    value: float

    def __call__(self, left: float) -> float:
        return self.value * left


class Constant(Rate):
    def __call__(self, left: float) -> float:
        return self.value


def valued(cls: type[Rate], value: float) -> Rate:
    rate = cls.__new__(cls)
    rate.value = value
    return rate


@pytest.mark.parametrize(
    ("twin", "trusted"),
    [(valued(Rate, 1.0), True), (valued(Rate, 1.0), False), (lambda left: left, False)],
    ids=["object-of the library", "object-used elsewhere", "function-used elsewhere"],
)
def test_what_a_training_has_put_in_the_place_of_something_that_is_called_comes_back(
    twin: Callable[[float], float], trusted: bool
) -> None:
    """Another schedule, another noise: an object of a class that the program uses, or that stands beside its own."""
    policy = Policy(trusted=frozenset({"tests"} if trusted else ()))
    saved, now = Part(rate=valued(Constant, 0.5)), Part(rate=twin)
    beside: dict[str, Any] = {} if trusted else {"other": valued(Constant, 3.0)}
    graft = plan(capture({"root": saved, **beside}, policy), {"root": now, **beside}, policy)
    graft.apply()
    assert type(now.__dict__["rate"]) is Constant
    assert now.__dict__["rate"](0.1) == 0.5
    assert graft.differences == []


def test_a_function_is_never_built_and_what_the_program_calls_stays() -> None:
    saved, own = Part(rate=lambda left: left), valued(Rate, 1.0)
    now = Part(rate=own)
    graft = plan(capture({"root": saved}, POLICY), {"root": now}, POLICY)
    graft.apply()
    assert now.__dict__["rate"] is own
    assert [(d.level, d.place) for d in graft.differences] == [("stays", "root/rate")]


@pytest.mark.parametrize(
    "put",
    [
        Object(c="numpy:vectorize", a={"pyfunc": Class(q="builtins:int")}),  # the program has none
        Object(c=class_name(Part)),  # cannot be called
        Object(c="tests.state.test_graft:Constant", a={"value": Function(q="tests.state.test_graft:plan")}),
        Object(
            c="tests.state.test_graft:Constant",
            a={"value": Tuple(v=[Class(q="tests.state.test_graft:Part")])},
        ),
        Object(c="tests.state.test_graft:Constant", a={"value": Ref(to=0)}),
        Object(c=class_name(Network)),  # is never built
        Object(c=class_name(Bomb)),
    ],
    ids=lambda node: node.c,
)
def test_a_document_puts_nothing_else_where_the_program_calls_something(put: Object) -> None:
    own = valued(Rate, 1.0)
    twin = Part(x=own)
    policy = Policy(structural=POLICY.structural, trusted=frozenset({"tests"}))
    graft = plan(forged(put), {"root": twin}, policy)
    assert [(d.level, d.place) for d in graft.differences] == [("stays", "root/x")]
    graft.apply()
    assert twin.__dict__["x"] is own


def test_a_type_of_numbers_is_a_value() -> None:
    twin = Part(dtype=None)
    plan(capture({"root": Part(dtype=np.float32)}, POLICY), {"root": twin}, POLICY).apply()
    assert twin.__dict__["dtype"] is np.float32


def test_references_below_a_kept_setting_lead_to_the_program_s_objects() -> None:
    inner, twin_inner = [1], [2]
    saved, twin = Part(a={"v": inner}, b=inner), Part(a={"v": twin_inner}, b=twin_inner)
    graft = plan(capture({"root": saved}, POLICY), {"root": twin}, POLICY, keep=["root/a"])
    assert graft.errors == []
    graft.apply()
    assert twin.__dict__["a"]["v"] is twin_inner is twin.__dict__["b"]


def test_attributes_that_the_saved_object_had_lost_are_removed() -> None:
    twin = Part(x=1, scratch=2)
    graft = plan(capture({"root": Part(x=1)}, POLICY), {"root": twin}, POLICY)
    graft.apply()
    assert twin.__dict__ == {"x": 1}
    assert [d.level for d in graft.differences] == ["removed"]


def test_roots_on_one_side_only_are_said() -> None:
    graft = plan(capture({"a": [1], "b": [2]}, POLICY), {"b": [0], "c": [3]}, POLICY)
    assert {(d.level, d.place) for d in graft.differences} == {("fresh", "c"), ("lost", "a")}


def test_an_array_of_another_shape_is_replaced_and_said() -> None:
    twin = Part(x=np.zeros(3))
    graft = plan(capture({"root": Part(x=np.ones(5))}, POLICY), {"root": twin}, POLICY)
    graft.apply()
    assert twin.__dict__["x"].tolist() == [1] * 5
    assert [(d.level, d.place) for d in graft.differences] == [("replaced", "root/x")]


def test_shared_constants_of_the_program_are_not_written_to() -> None:
    constant = np.arange(10.0)
    constant.flags.writeable = False
    twin = Part(x=constant)
    plan(capture({"root": Part(x=np.arange(10.0))}, POLICY), {"root": twin}, POLICY).apply()
    assert constant.tolist() == list(range(10))


class Chained:
    def __init__(self, parent: Any) -> None:
        self.parent = parent


def nested(levels: int) -> list[Any]:
    chain: list[Any] = []
    for _ in range(levels):
        chain = [chain]
    return chain


def test_what_is_nested_too_deeply_is_refused_when_it_is_saved() -> None:
    with pytest.raises(NotCapturable, match="100 levels"):
        capture({"root": nested(150)}, POLICY)


def from_deep_within(levels: int, act: Callable[[], Any]) -> Any:
    return act() if levels == 0 else from_deep_within(levels - 1, act)


def test_whatever_is_saved_can_be_restored_from_deep_within_a_program() -> None:
    def chain(length: int) -> Chained:
        node = Chained(None)
        for _ in range(length):
            node = Chained(node)
        return node

    policy = Policy(trusted=frozenset({__name__.partition(".")[0]}))
    longest = 98
    saved = from_deep_within(200, lambda: capture({"root": Part(x=chain(longest))}, policy))
    twin = Part(x=chain(0))
    from_deep_within(200, lambda: plan(saved, {"root": twin}, policy).apply())
    node, levels = twin.__dict__["x"], 0
    while node.parent is not None:
        node, levels = node.parent, levels + 1
    assert levels == longest
    with pytest.raises(NotCapturable):
        capture({"root": Part(x=chain(longest + 1))}, policy)


def test_a_document_nested_without_end_is_corrupt() -> None:
    node: Value = 1
    for _ in range(5000):
        node = Tuple(v=[node])
    with pytest.raises(CorruptObject, match="nested"):
        plan(forged(node), {"root": Part(x=None)}, POLICY)
