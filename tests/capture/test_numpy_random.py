"""Generators of numpy and Python go on where they were, whatever drew from them before."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import BitGenerator, Generator, RandomState, SeedSequence
from numpy.random.bit_generator import ISeedSequence

from unbroken.capture.numpy_random import BIT_GENERATORS, POLICY
from unbroken.errors import NotCapturable
from unbroken.state.diff import compare
from unbroken.state.graft import plan
from unbroken.state.nodes import Array, Coded, Dict, Int, Ref, Value
from unbroken.state.snapshot import Snapshot
from unbroken.state.walk import capture

Travel = Callable[[Snapshot], Snapshot]


class Holder:
    """Any attributes."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def restore(saved: Snapshot, twin: Holder) -> None:
    graft = plan(saved, {"it": twin}, POLICY)
    assert graft.errors == []
    graft.apply()
    assert compare(saved, capture({"it": twin}, POLICY)) == []


def carry(original: Holder, twin: Holder, travel: Travel = lambda snapshot: snapshot) -> None:
    restore(travel(capture({"it": original}, POLICY)), twin)


def draws(generator: Generator) -> list[float]:
    # 32-bit draws come from halves of 64-bit words: a buffered half is part of the state.
    mixed = generator.integers(0, 2**31, 51, dtype=np.int32).tolist()
    return [*mixed, *generator.normal(size=49).tolist()]


def used(name: str, seed: int, odd: int = 1) -> Generator:
    generator = Generator(BIT_GENERATORS[name](seed))
    generator.integers(0, 2**31, odd, dtype=np.int32)
    return generator


every_kind = pytest.mark.parametrize("name", sorted(BIT_GENERATORS))


@every_kind
def test_the_next_draws_are_equal(name: str, travel: Travel) -> None:
    original, twin = Holder(rng=used(name, 3)), Holder(rng=used(name, 8, odd=4))
    own, bits = twin.rng, twin.rng.bit_generator
    carry(original, twin, travel)
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":  # before, a sequence cannot be set in place
        assert twin.rng is own and twin.rng.bit_generator is bits
    assert draws(twin.rng) == draws(original.rng)


@every_kind
def test_a_generator_that_the_twin_lacks_is_built(name: str, travel: Travel) -> None:
    original, twin = Holder(rng=used(name, 3)), Holder(rng=None)
    carry(original, twin, travel)
    assert draws(twin.rng) == draws(original.rng)


@every_kind
def test_children_spawned_later_are_equal(name: str, travel: Travel) -> None:
    original, twin = Holder(rng=used(name, 3)), Holder(rng=used(name, 8))
    original.rng.spawn(3)
    carry(original, twin, travel)
    (a,), (b,) = original.rng.spawn(1), twin.rng.spawn(1)
    assert draws(a) == draws(b)
    assert draws(a) != draws(Generator(BIT_GENERATORS[name](3)).spawn(1)[0]), "the first child is another"


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(BIT_GENERATORS)),
    seed=st.integers(0, 2**130),
    drawn=st.integers(0, 700),
    spawned=st.integers(0, 4),
)
def test_any_state_comes_back(name: str, seed: int, drawn: int, spawned: int) -> None:
    original, twin = Holder(rng=used(name, seed, drawn)), Holder(rng=used(name, 1))
    original.rng.spawn(spawned)
    carry(original, twin)
    assert draws(twin.rng) == draws(original.rng)
    assert twin.rng.bit_generator.seed_seq.state == original.rng.bit_generator.seed_seq.state


def test_two_generators_on_one_stream_stay_on_one_stream(travel: Travel) -> None:
    bits = np.random.PCG64(3)
    original = Holder(a=Generator(bits), b=Generator(bits), bits=bits)
    twin = Holder(a=Generator(np.random.PCG64(1)), b=Generator(np.random.PCG64(2)), bits=None)
    carry(original, twin, travel)
    assert twin.a.bit_generator is twin.b.bit_generator is twin.bits
    expected = [original.a.random(), original.b.random(), original.bits.random_raw()]
    assert [twin.a.random(), twin.b.random(), twin.bits.random_raw()] == expected


def test_two_streams_are_not_joined_where_the_twin_joined_them(travel: Travel) -> None:
    bits = np.random.PCG64(3)
    original = Holder(a=Generator(np.random.PCG64(1)), b=Generator(np.random.PCG64(2)))
    twin = Holder(a=Generator(bits), b=Generator(bits))
    carry(original, twin, travel)
    assert twin.a.bit_generator is not twin.b.bit_generator
    assert [twin.a.random(), twin.b.random()] == [original.a.random(), original.b.random()]


def test_another_kind_of_stream_in_the_twin_is_replaced() -> None:
    original, twin = Holder(rng=used("Philox", 3)), Holder(rng=used("PCG64", 3))
    carry(original, twin)
    assert isinstance(twin.rng.bit_generator, np.random.Philox)
    assert draws(twin.rng) == draws(original.rng)


def test_a_seed_sequence_held_elsewhere_stays_the_generators_own(travel: Travel) -> None:
    def build(seed: int) -> Holder:
        sequence = SeedSequence(seed)
        return Holder(rng=Generator(np.random.PCG64(sequence)), sequence=sequence)

    original, twin = build(3), build(3)
    original.sequence.spawn(2)
    carry(original, twin, travel)
    assert twin.rng.bit_generator.seed_seq is twin.sequence
    assert twin.rng.spawn(1)[0].random() == original.rng.spawn(1)[0].random()


def test_a_sequence_of_any_entropy(travel: Travel) -> None:
    sequence = SeedSequence([1, 2**40], spawn_key=(7, 2**33), pool_size=8)
    original = Holder(a=sequence, b=SeedSequence(2**127), c=SeedSequence(np.arange(3)))
    twin = Holder(a=None, b=None, c=None)
    carry(original, twin, travel)
    for name in "abc":
        left, right = getattr(original, name), getattr(twin, name)
        assert left.generate_state(8).tolist() == right.generate_state(8).tolist()


def test_a_stream_seeded_in_the_old_way_has_no_sequence(travel: Travel) -> None:
    original = Holder(rs=RandomState(3), new=RandomState(5))
    twin = Holder(rs=RandomState(4), new=None)
    assert original.rs._bit_generator.seed_seq is None
    original.rs.normal()
    carry(original, twin, travel)
    for name in ("rs", "new"):
        left, right = getattr(original, name), getattr(twin, name)
        assert right._bit_generator.seed_seq is None
        assert right.normal(size=100).tolist() == left.normal(size=100).tolist()


class OwnSequence:
    """A seed sequence of a user's own."""

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        return np.arange(n_words, dtype=dtype)


ISeedSequence.register(OwnSequence)


def test_a_sequence_of_a_users_own_stays_the_twins(travel: Travel) -> None:
    sequence: Any = OwnSequence  # the stubs do not know that any ISeedSequence will do
    original, twin = Holder(bits=np.random.PCG64(sequence())), Holder(bits=np.random.PCG64(sequence()))
    own = twin.bits.seed_seq
    original.bits.random_raw(5)
    carry(original, twin, travel)
    assert twin.bits.seed_seq is own
    assert twin.bits.random_raw() == original.bits.random_raw()


def test_the_gaussian_in_reserve(travel: Travel) -> None:
    original, twin = Holder(rs=RandomState(3)), Holder(rs=RandomState(3))
    original.rs.normal()
    own = twin.rs
    carry(original, twin, travel)
    assert twin.rs is own
    # Without the reserve the twin would compute the same second Gaussian only after a fresh first one.
    assert twin.rs.normal() == original.rs.normal()
    assert twin.rs.randint(2**30) == original.rs.randint(2**30)


def test_a_legacy_state_and_a_generator_on_one_stream(travel: Travel) -> None:
    def build(seed: int) -> Holder:
        bits = np.random.SFC64(seed)
        return Holder(rng=Generator(bits), rs=RandomState(bits))

    original, twin = build(3), build(4)
    original.rs.normal()
    carry(original, twin, travel)
    expected = [original.rs.normal(), original.rng.random(), original.rs.rand()]
    assert [twin.rs.normal(), twin.rng.random(), twin.rs.rand()] == expected


def test_pythons_generator(travel: Travel) -> None:
    original, twin = Holder(r=random.Random(3), new=random.Random(5)), Holder(r=random.Random(4), new=None)
    original.r.gauss(0, 1)
    original.new.random()
    own = twin.r
    carry(original, twin, travel)
    assert twin.r is own
    for name in ("r", "new"):
        left, right = getattr(original, name), getattr(twin, name)
        assert [left.gauss(0, 1) for _ in range(100)] == [right.gauss(0, 1) for _ in range(100)]


def test_the_systems_generator_has_no_state() -> None:
    twin = Holder(r=random.SystemRandom())
    carry(Holder(r=random.SystemRandom()), twin)
    assert 0 <= twin.r.random() < 1


def test_a_snapshot_is_not_moved_by_later_draws() -> None:
    original, twin = Holder(rng=used("MT19937", 3), r=random.Random(3)), Holder(rng=None, r=None)
    saved = capture({"it": original}, POLICY)
    expected_rng, expected_r = draws(original.rng), original.r.random()
    restore(saved, twin)
    assert (draws(twin.rng), twin.r.random()) == (expected_rng, expected_r)


def test_a_skeleton_holds_no_state() -> None:
    a = Holder(rng=used("PCG64", 3), rs=RandomState(3), r=random.Random(3), s=SeedSequence(3))
    b = Holder(rng=used("PCG64", 4), rs=RandomState(4), r=random.Random(4), s=SeedSequence(4))
    skeletons = [capture({"it": it}, POLICY, contents=False) for it in (a, b)]
    assert compare(*skeletons) == []
    other = capture({"it": Holder(**{**vars(a), "rng": used("SFC64", 3)})}, POLICY, contents=False)
    assert compare(skeletons[0], other) != [], "the kind of a generator is configuration"


def node_of(saved: Snapshot, name: str) -> Coded:
    component = saved.components["training_state"]
    node: Any = component.roots["it"]
    found = node.a[name]
    assert isinstance(found, Coded)
    return found


def forged_states() -> list[Any]:
    words = Array(d="<u4", s=(3,), data=b"\0" * 12)
    return [
        pytest.param(None, id="nothing"),
        pytest.param(7, id="a number"),
        pytest.param(Dict(v={}), id="no state"),
        pytest.param(Dict(v={"state": 3}), id="a state that is a number"),
        pytest.param(Dict(v={"state": Dict(v={"bit_generator": "PCG64"})}), id="a part is missing"),
        pytest.param(
            Dict(v={"state": Dict(v={"bit_generator": "SFC64", "state": Dict(v={"state": words})})}),
            id="another kind",
        ),
        pytest.param(Dict(v={"state": Ref(to=1)}), id="a reference"),
        pytest.param(
            Dict(v={"state": Array(d="|O", s=(1,), data=b"\0" * 8)}), id="an array of objects"
        ),
        pytest.param(
            Dict(v={"state": Array(d="<u8", s=(2**40,), data=b"\0" * 8)}), id="an array of another size"
        ),
    ]  # fmt: skip


@pytest.mark.parametrize("forged", forged_states())
def test_a_forged_bit_generator_is_refused_and_the_live_one_is_not_touched(forged: Value) -> None:
    saved = capture({"it": Holder(bits=np.random.PCG64(3))}, POLICY)
    node_of(saved, "bits").v = forged
    twin = Holder(bits=np.random.PCG64(4))
    graft = plan(saved, {"it": twin}, POLICY)
    if forged is not None:  # nothing: a skeleton, which leaves the twin's state alone
        assert graft.errors != []
    assert twin.bits.state == np.random.PCG64(4).state


@pytest.mark.parametrize("position", [-1, 625, 2**31, True, "0"])
@pytest.mark.parametrize(("name", "part"), [("MT19937", "pos"), ("Philox", "buffer_pos")])
def test_a_forged_position_does_not_read_beyond(name: str, part: str, position: Value) -> None:
    saved = capture({"it": Holder(bits=BIT_GENERATORS[name](3))}, POLICY)
    state: Any = node_of(saved, "bits").v
    outer = state.v["state"].v
    (outer["state"].v if part == "pos" else outer)[part] = position
    assert plan(saved, {"it": Holder(bits=BIT_GENERATORS[name](3))}, POLICY).errors != []


@pytest.mark.parametrize("pool", [0, 3, 2**40, "4", None])
def test_a_forged_seed_sequence_allocates_nothing(pool: Value) -> None:
    saved = capture({"it": Holder(s=SeedSequence(3))}, POLICY)
    payload = node_of(saved, "s").v
    assert isinstance(payload, Dict) and payload.v is not None
    payload.v["pool_size"] = pool
    assert plan(saved, {"it": Holder(s=SeedSequence(3))}, POLICY).errors != []


def test_a_python_state_of_the_wrong_length_is_refused() -> None:
    saved = capture({"it": Holder(r=random.Random(3))}, POLICY)
    payload = node_of(saved, "r").v
    assert isinstance(payload, Dict) and payload.v is not None
    payload.v["words"] = Array(d="<u4", s=(2,), data=b"\0" * 8)
    assert plan(saved, {"it": Holder(r=random.Random(3))}, POLICY).errors != []


@pytest.mark.parametrize("name", ["os:system", "numpy.random._pcg64:Evil", "builtins:PCG64"])
def test_no_class_is_taken_from_a_document(name: str) -> None:
    saved = capture({"it": Holder(bits=np.random.PCG64(3))}, POLICY)
    node_of(saved, "bits").c = name
    assert plan(saved, {"it": Holder(bits=None)}, POLICY).errors != []


def test_a_number_beyond_its_word_is_refused() -> None:
    saved = capture({"it": Holder(bits=np.random.PCG64(3))}, POLICY)
    state: Any = node_of(saved, "bits").v
    state.v["state"].v["state"].v["inc"] = Int(v=hex(2**200))
    assert plan(saved, {"it": Holder(bits=np.random.PCG64(3))}, POLICY).errors != []


class Custom(BitGenerator):
    """A bit generator of a user's own, without any state to show."""


def test_a_bit_generator_without_a_state_dict_is_named() -> None:
    with pytest.raises(NotCapturable, match="it/bits"):
        capture({"it": Holder(bits=Custom(3))}, POLICY)
