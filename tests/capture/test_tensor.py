"""Tensors come back bit for bit, in place, and sharing the memory that they shared."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from unbroken.capture.numpy_random import POLICY as NUMPY
from unbroken.capture.tensor import DTYPES
from unbroken.capture.torch import POLICY as TORCH
from unbroken.capture.torch import WITH_GRADIENTS
from unbroken.errors import NotCapturable, StateMismatch
from unbroken.state import memory
from unbroken.state.diff import compare
from unbroken.state.graft import plan
from unbroken.state.nodes import Array, Coded, Dict, Tuple, Value
from unbroken.state.places import visit
from unbroken.state.policy import Policy
from unbroken.state.snapshot import Snapshot
from unbroken.state.walk import capture

Travel = Callable[[Snapshot], Snapshot]
POLICY = NUMPY.merged(TORCH)


class Holder:
    """Any attributes."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def carry(original: Holder, twin: Holder, travel: Travel = lambda s: s, policy: Policy = POLICY) -> None:
    """Restore `original` over `twin`, and read back that nothing differs."""
    saved = travel(capture({"it": original}, policy))
    graft = plan(saved, {"it": twin}, policy)
    assert graft.errors == []
    graft.apply()
    assert compare(saved, capture({"it": twin}, policy)) == []


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(torch.clone(tensor.detach(), memory_format=torch.contiguous_format).untyped_storage())


def random_bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """A tensor of every kind of bit pattern, NaNs with payloads among them."""
    count = int(np.prod(shape, dtype=int)) * dtype.itemsize
    raw = np.random.default_rng(seed).integers(0, 2 if dtype is torch.bool else 256, count, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def total_bytes(saved: Snapshot) -> int:
    return sum(component.nbytes for component in saved.components.values())


every_dtype = pytest.mark.parametrize("name", sorted(DTYPES))


@every_dtype
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (9, 7)], ids=str)
def test_every_dtype_comes_back_bit_for_bit(name: str, shape: tuple[int, ...], travel: Travel) -> None:
    dtype = DTYPES[name]
    original = Holder(old=random_bits(shape, dtype, 1), new=random_bits(shape, dtype, 2))
    twin = Holder(old=random_bits(shape, dtype, 3), new=None)
    own = twin.old
    carry(original, twin, travel)
    assert twin.old is own
    for key in ("old", "new"):
        ours, theirs = getattr(twin, key), getattr(original, key)
        assert (ours.dtype, ours.shape, bits(ours)) == (theirs.dtype, theirs.shape, bits(theirs))


@pytest.mark.parametrize(
    "make",
    [
        lambda t: t.t(),
        lambda t: t[:, 1:-1],
        lambda t: t[::2, ::3],
        lambda t: t[2],
        lambda t: t[3, 4],
        lambda t: t[:1].expand(7, -1),
        lambda t: t.unfold(0, 3, 1),
        lambda t: t[0, 3:4:5],
        lambda t: t[3:4:5, :],
        lambda t: t.to(memory_format=torch.preserve_format).unsqueeze(0).permute(2, 0, 1),
    ],
)
@pytest.mark.parametrize("alike", [True, False], ids=["alike twin", "dense twin"])
def test_layouts(make: Callable[[torch.Tensor], torch.Tensor], alike: bool, travel: Travel) -> None:
    original = make(random_bits((8, 9), torch.float32, 1))
    twin = make(random_bits((8, 9), torch.float32, 2))
    holder = Holder(x=twin if alike else twin.contiguous().clone())
    own = holder.x
    carry(Holder(x=original), holder, travel)
    assert holder.x is own
    assert bits(holder.x) == bits(original)
    for n, mine, theirs in zip(original.shape, holder.x.stride(), original.stride(), strict=True):
        assert n == 1 or mine == theirs


def test_conjugates_and_negatives_are_saved_as_values() -> None:
    x = torch.randn(4, dtype=torch.complex64)
    assert x.conj().is_conj() and x.conj().imag.is_neg()
    twin = Holder(c=None, n=None)
    carry(Holder(c=x.conj(), n=x.conj().imag), twin)
    assert torch.equal(twin.c, x.conj()) and torch.equal(twin.n, -x.imag)


def test_a_twin_of_another_shape_or_dtype_is_replaced_and_named() -> None:
    saved = capture({"it": Holder(a=torch.ones(3), b=torch.ones(3))}, POLICY)
    twin = Holder(a=torch.zeros(4), b=torch.zeros(3, dtype=torch.float64))
    graft = plan(saved, {"it": twin}, POLICY)
    assert [d.level for d in graft.differences] == ["replaced", "replaced"]
    graft.apply()
    assert torch.equal(twin.a, torch.ones(3)) and twin.b.dtype == torch.float32


def test_a_snapshot_shares_nothing_with_what_goes_on() -> None:
    original = Holder(small=torch.zeros(3), large=torch.zeros(5000), p=nn.Parameter(torch.zeros(5000)))
    saved = capture({"it": original}, POLICY)
    with torch.no_grad():
        for tensor in vars(original).values():
            tensor.add_(1)
    twin = Holder(small=None, large=None, p=nn.Parameter(torch.ones(5000)))
    plan(saved, {"it": twin}, POLICY).apply()
    assert not any(bool(t.any()) for t in vars(twin).values())


def test_a_restored_tensor_shares_nothing_with_the_snapshot() -> None:
    saved = capture({"it": Holder(x=torch.zeros(5000))}, POLICY)
    twin = Holder(x=None)
    plan(saved, {"it": twin}, POLICY).apply()
    twin.x.add_(1)
    again = Holder(x=None)
    plan(saved, {"it": again}, POLICY).apply()
    assert not again.x.any()


def test_a_plan_touches_nothing() -> None:
    saved = capture({"it": Holder(x=torch.ones(3), n=torch.ones(2))}, POLICY)
    twin = Holder(x=torch.zeros(3), n=None)
    before = capture({"it": twin}, POLICY)
    plan(saved, {"it": twin}, POLICY)
    assert compare(before, capture({"it": twin}, POLICY)) == []


def test_equal_values_are_not_written() -> None:
    shared = torch.ones(3)
    version = shared._version
    carry(Holder(x=torch.ones(3)), Holder(x=shared))
    assert shared._version == version


def test_two_tensors_on_one_memory_share_it_again(travel: Travel) -> None:
    base = torch.arange(12.0)
    original = Holder(a=base[:4], b=base.view(3, 4), c=base.view(torch.int32)[8:])
    twin = Holder(a=None, b=None, c=None)
    carry(original, twin, travel)
    twin.b[0, 0], twin.b[2, 3] = -5.0, 0.0
    assert twin.a[0] == -5.0 and twin.c[3] == 0


def test_a_twin_that_shares_nothing_is_made_to_share_and_keeps_its_parameters(travel: Travel) -> None:
    def tied() -> Holder:
        vector = torch.arange(6.0)
        return Holder(a=nn.Parameter(vector[:2]), b=nn.Parameter(vector[2:].view(2, 2)), vector=vector)

    original = tied()
    twin = Holder(a=nn.Parameter(torch.zeros(2)), b=nn.Parameter(torch.zeros(2, 2)), vector=torch.zeros(6))
    own = twin.a, twin.b, twin.vector
    carry(original, twin, travel)
    assert (twin.a, twin.b, twin.vector) == own
    twin.vector.fill_(7.0)
    assert twin.a.tolist() == [7.0, 7.0] and twin.b.tolist() == [[7.0, 7.0], [7.0, 7.0]]


def test_a_twin_that_shares_too_much_is_parted(travel: Travel) -> None:
    original = Holder(a=torch.ones(3), b=torch.full((3,), 2.0))
    memory = torch.zeros(3)
    twin = Holder(a=memory, b=memory.view(3))
    carry(original, twin, travel)
    assert twin.a.tolist() == [1.0] * 3 and twin.b.tolist() == [2.0] * 3
    twin.a.zero_()
    assert twin.b.tolist() == [2.0] * 3


def test_one_tensor_at_two_places_is_one_tensor(travel: Travel) -> None:
    x = torch.ones(3)
    twin = Holder(a=torch.zeros(3), b=torch.zeros(3))
    carry(Holder(a=x, b=x), twin, travel)
    assert twin.a is twin.b


def test_parameters_that_are_slices_of_a_vector_are_met_before_the_vector(travel: Travel) -> None:
    """Evolution strategies keep all weights in one vector; small biases are met first."""

    def build(seed: int) -> Holder:
        torch.manual_seed(seed)
        policy = nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 2))
        weights = nn.utils.parameters_to_vector(policy.parameters()).detach().clone()
        nn.utils.vector_to_parameters(weights, policy.parameters())
        return Holder(policy=policy, weights=weights)

    original, twin = build(1), build(2)
    carry(original, twin, travel)
    twin.weights.zero_()
    assert not any(bool(p.any()) for p in twin.policy.parameters())

    apart = build(3)
    vars(apart)["weights"] = torch.zeros_like(apart.weights)
    for p in apart.policy.parameters():
        p.data = p.data.clone()
    own = list(apart.policy.parameters())
    carry(original, apart, travel)
    apart.weights.zero_()
    assert [a is b for a, b in zip(apart.policy.parameters(), own, strict=True)] == [True] * 4
    assert not any(bool(p.any()) for p in own)


def test_a_slice_of_a_huge_memory_costs_its_own_bytes() -> None:
    huge = torch.zeros(1 << 20)
    saved = capture({"it": Holder(x=huge[5000:6000])}, POLICY)
    assert total_bytes(saved) == 4000
    twin = Holder(x=None)
    plan(saved, {"it": twin}, POLICY).apply()
    assert twin.x.untyped_storage().nbytes() == 4000


def test_a_thin_column_of_a_huge_memory_is_written_densely(travel: Travel) -> None:
    huge = torch.arange(1 << 16, dtype=torch.float32).view(-1, 64)
    saved = capture({"it": Holder(x=huge[:, 3])}, POLICY)
    assert total_bytes(saved) == 4096
    for twin in (Holder(x=None), Holder(x=torch.zeros(1 << 10)), Holder(x=torch.zeros(1 << 10, 64)[:, 3])):
        carry(Holder(x=huge[:, 3]), twin, travel)
        assert torch.equal(twin.x, huge[:, 3])


def test_bytes_between_the_elements_are_no_part_of_the_state() -> None:
    def between(noise: float) -> Holder:
        memory = torch.full((40, 4), noise)
        memory[:, 1:3] = 1.0
        overlapping = torch.full((8,), noise).as_strided((2, 2, 2), (1, 1, 5)).fill_(2.0)
        return Holder(a=memory[:, 1:3], b=overlapping)

    assert compare(capture({"it": between(5.0)}, POLICY), capture({"it": between(6.0)}, POLICY)) == []


def test_two_slices_of_one_memory_cost_their_span_once() -> None:
    huge = torch.zeros(1 << 20)
    assert total_bytes(capture({"it": Holder(a=huge[100:1100], b=huge[600:1600])}, POLICY)) == 6000


def test_memory_is_shared_across_components(travel: Travel) -> None:
    class Agent:
        def __init__(self) -> None:
            self.net = nn.Linear(64, 64)
            self.flat = self.net.weight.data.view(-1)

    original, twin = Agent(), Agent()
    saved = travel(capture({"it": original}, POLICY))
    assert set(saved.components) == {"policy_weights", "training_state"}
    plan(saved, {"it": twin}, POLICY).apply()
    twin.net.weight.data.zero_()
    assert not twin.flat.any()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_set_of_slices_comes_back(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 3000))
    memory = torch.arange(size, dtype=torch.float32)
    slices = data.draw(
        st.lists(
            st.tuples(st.integers(0, size - 1), st.integers(1, size), st.integers(1, 700)),
            min_size=1,
            max_size=4,
        )
    )
    original = Holder(**{f"x{i}": memory[a : a + n : step] for i, (a, n, step) in enumerate(slices)})
    twin = Holder(**{f"x{i}": torch.zeros(len(t)) for i, t in enumerate(vars(original).values())})
    carry(original, twin)
    for key, mine in vars(twin).items():
        assert torch.equal(mine, getattr(original, key))
    # A write through one shows in another exactly where it does in the original.
    for key in vars(original):
        for holder in (original, twin):
            getattr(holder, key).add_(1000.0)
    for key, mine in vars(twin).items():
        assert torch.equal(mine, getattr(original, key))


@pytest.mark.parametrize("other", [torch.zeros(4), torch.zeros(3, dtype=torch.float64)])
def test_a_parameter_of_another_shape_or_dtype_is_an_error(other: torch.Tensor) -> None:
    saved = capture({"it": Holder(p=nn.Parameter(torch.ones(3)))}, POLICY)
    twin = Holder(p=nn.Parameter(other))
    graft = plan(saved, {"it": twin}, POLICY)
    assert len(graft.errors) == 1 and "float32[3]" in graft.errors[0].detail
    with pytest.raises(StateMismatch):
        graft.apply()
    assert not twin.p.any()


@pytest.mark.parametrize("there", [None, torch.zeros(3), "absent"])
def test_a_parameter_is_never_built(there: object) -> None:
    saved = capture({"it": Holder(p=nn.Parameter(torch.ones(3)))}, POLICY)
    twin = Holder() if there == "absent" else Holder(p=there)
    assert plan(saved, {"it": twin}, POLICY).errors != []


def test_requires_grad_comes_back(travel: Travel) -> None:
    frozen, trained = nn.Parameter(torch.ones(3), requires_grad=False), torch.ones(3, requires_grad=True)
    twin = Holder(a=nn.Parameter(torch.zeros(3)), b=torch.zeros(3), c=None)
    carry(Holder(a=frozen, b=trained, c=torch.ones(2, requires_grad=True)), twin, travel)
    assert [t.requires_grad for t in (twin.a, twin.b, twin.c)] == [False, True, True]


def test_a_dropped_graph_is_noted_and_the_values_are_kept() -> None:
    x = torch.ones(3, requires_grad=True) * 2
    saved = capture({"it": Holder(x=x)}, POLICY)
    assert [(n.kind, n.place) for n in saved.notes] == [("graph dropped", "it/x/value")]
    twin = Holder(x=torch.zeros(3, requires_grad=True) * 2)
    plan(saved, {"it": twin}, POLICY).apply()
    assert twin.x.tolist() == [2.0] * 3 and twin.x.grad_fn is None


def test_what_hangs_on_a_tensor(travel: Travel) -> None:
    tagged = nn.Buffer(torch.ones(3), persistent=False)
    tagged.seen = {"episodes": 3}  # type: ignore[attr-defined]
    twin = Holder(old=nn.Buffer(torch.zeros(3)), new=None)
    carry(Holder(old=tagged, new=tagged.clone()), twin, travel)
    assert twin.old.seen == {"episodes": 3} and twin.old.persistent is False


def test_an_inference_tensor_is_written_in_place() -> None:
    with torch.inference_mode():
        original, twin = torch.ones(3), torch.zeros(3)
    holder = Holder(x=twin)
    carry(Holder(x=original), holder)
    assert holder.x is twin and twin.tolist() == [1.0] * 3


class Tagged(torch.Tensor):
    pass


def test_a_subclass_keeps_its_class(travel: Travel) -> None:
    twin = Holder(old=torch.zeros(3).as_subclass(Tagged), new=None)
    own = twin.old
    carry(Holder(old=torch.ones(3).as_subclass(Tagged), new=torch.ones(2).as_subclass(Tagged)), twin, travel)
    assert twin.old is own and type(twin.new) is Tagged and twin.new.tolist() == [1.0, 1.0]


def test_values_land_on_the_device_of_the_twin() -> None:
    saved = capture(
        {"it": Holder(p=nn.Parameter(torch.ones(3)), step=torch.ones(()), m=torch.ones(3))}, POLICY
    )
    twin = Holder(p=nn.Parameter(torch.ones(3, device="meta")), step=None, m=torch.ones(3, device="meta"))
    graft = plan(saved, {"it": twin}, POLICY)
    assert [(d.level, d.place) for d in graft.differences] == [
        ("changed", "it/m/value/device"),
        ("moved", "it/p/value/device"),
    ]
    graft.apply()
    assert [t.device.type for t in (twin.p, twin.step, twin.m)] == ["meta", "cpu", "meta"]


def test_moments_follow_their_parameters_to_another_device() -> None:
    a, b = nn.Linear(3, 2), nn.Linear(3, 2, device="meta")
    one, two = torch.optim.Adam(a.parameters()), torch.optim.Adam(b.parameters())
    a(torch.ones(1, 3)).sum().backward()
    one.step()
    plan(capture({"net": a, "opt": one}, POLICY), {"net": b, "opt": two}, POLICY).apply()
    state = two.state[b.weight]
    assert (state["exp_avg"].device.type, state["step"].device.type) == ("meta", "cpu")


@pytest.mark.parametrize("rows", [0, 3, 8])
def test_rows_of_a_ring_that_were_never_written_cost_nothing(rows: int, travel: Travel) -> None:
    class Ring:
        def __init__(self, fill: float, written: int) -> None:
            self.written = written
            self.observations = torch.full((8, 1000), fill)

    policy = POLICY.merged(
        Policy(rings=(lambda o: {"observations": o.written} if isinstance(o, Ring) else None,))
    )
    original, twin, fresh = Ring(1.0, rows), Ring(2.0, 0), Ring(0.0, 0)
    saved = travel(capture({"it": original}, policy))
    assert total_bytes(saved) == rows * 4000
    own = twin.observations
    plan(saved, {"it": twin}, policy).apply()
    assert twin.observations is own
    assert bool((own[:rows] == 1.0).all()) and bool((own[rows:] == 2.0).all())
    del fresh.observations
    plan(saved, {"it": fresh}, policy).apply()
    assert fresh.observations[:, 0].tolist() == [1.0] * rows + [0.0] * (8 - rows)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_and_the_host(travel: Travel) -> None:
    base = torch.randn(5000, device="cuda")
    original = Holder(p=nn.Parameter(base[:10]), rest=base[10:], column=base.view(-1, 50)[:, 3])
    twin = Holder(p=nn.Parameter(torch.zeros(10, device="cuda")), rest=None, column=None)
    carry(original, twin, travel)
    assert {t.device.type for t in vars(twin).values()} == {"cuda"}
    assert all(torch.equal(getattr(twin, key), value) for key, value in vars(original).items())
    saved = capture({"it": original}, POLICY)
    host = Holder(p=nn.Parameter(torch.zeros(10)), rest=torch.zeros(4990), column=None)
    plan(saved, {"it": host}, POLICY).apply()
    assert {t.device.type for t in vars(host).values()} == {"cpu"}
    assert torch.equal(host.rest, base[10:].cpu())


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3).to_sparse(),
        lambda: torch.ones(3, 3).to_sparse_csr(),
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        lambda: torch.ones(3).untyped_storage(),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    ],
    ids=["sparse", "csr", "quantized", "storage", "nested"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch announces betas and deprecations
def test_what_is_no_plain_tensor_is_named(make: Callable[[], object]) -> None:
    with pytest.raises(NotCapturable, match="it/x"):
        capture({"it": Holder(x=make())}, POLICY)


def payload_of(saved: Snapshot, name: str) -> dict[str, Value]:
    root: Any = saved.components["training_state"].roots["it"]
    node = root.a[name]
    assert isinstance(node, Coded) and isinstance(node.v, Dict) and node.v.v is not None
    return node.v.v


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dtype", "object"),
        ("dtype", "float31"),
        ("dtype", 7),
        ("dtype", "float64"),
        ("dtype", "quint2x4"),
        ("dtype", "bits8"),
        ("shape", Tuple(v=[2**40])),
        ("shape", Tuple(v=[-3])),
        ("shape", Tuple(v=["3"])),
        ("shape", 3),
        ("strides", Tuple(v=[2**40])),
        ("strides", Tuple(v=[-1])),
        ("strides", Tuple(v=[1, 1])),
        ("offset", 4096),
        ("offset", -4),
        ("offset", 2),
        ("offset", True),
        ("rows", 4),
        ("rows", "all"),
        ("device", "os.system"),
        ("device", 3),
        ("memory", None),
        ("memory", 5),
        ("memory", Coded(k="torch.memory", v=3)),
        ("memory", Array(d="<f4", s=(3,), data=b"\0" * 12)),
    ],
)
@pytest.mark.parametrize("own", [True, False], ids=["in place", "new"])
def test_a_forged_tensor_is_refused_in_the_plan(key: str, value: Value, own: bool) -> None:
    saved = capture({"it": Holder(x=torch.ones(3))}, POLICY)
    payload_of(saved, "x")[key] = value
    twin = Holder(x=torch.zeros(3) if own else None)
    graft = plan(saved, {"it": twin}, POLICY)
    assert graft.errors != []
    if own:
        assert not twin.x.any()


def test_no_tensor_class_is_imported_or_built_from_elsewhere() -> None:
    saved = capture({"it": Holder(x=torch.ones(3))}, POLICY)
    root: Any = saved.components["training_state"].roots["it"]
    root.a["x"].c = "subprocess:Popen"
    assert plan(saved, {"it": Holder(x=None)}, POLICY).errors != []


@pytest.mark.parametrize("twin_has_gradients", [False, True])
def test_gradients_come_back_where_they_are_asked_for(travel: Travel, twin_has_gradients: bool) -> None:
    def network(seed: int, *, backward: bool) -> torch.nn.Linear:
        torch.manual_seed(seed)
        made = torch.nn.Linear(40, 40)
        if backward:
            made(torch.ones(1, 40)).sum().backward()
            made.bias.grad = None
        return made

    saved, twin = network(1, backward=True), network(2, backward=twin_has_gradients)
    policy = POLICY.merged(WITH_GRADIENTS)
    plan(travel(capture({"net": saved}, policy)), {"net": twin}, policy).apply()
    assert twin.weight.grad is not None
    assert saved.weight.grad is not None
    assert torch.equal(twin.weight.grad, saved.weight.grad)
    assert twin.bias.grad is None
    assert compare(capture({"net": saved}, policy), capture({"net": twin}, policy)) == []
    plain = capture({"net": saved}, POLICY)
    assert (
        plain.components["policy_weights"].nbytes
        < capture({"net": saved}, policy).components["policy_weights"].nbytes
    )


def on_another_device(snapshot: Snapshot) -> Snapshot:
    """What the same program would have saved where its tensors lie on a device that is not here."""
    for component in snapshot.components.values():
        for root, value in component.roots.items():
            for _, node in visit(root, value):
                if isinstance(node, Coded) and node.k == "torch.tensor" and isinstance(node.v, Dict):
                    fields = node.v.v or {}
                    if fields.get("shape") != Tuple(v=[]):  # optimizers count their steps on the CPU
                        node.v.v = {**fields, "device": "cuda:3"}
    return snapshot


def test_what_was_saved_on_a_device_that_is_not_here_comes_back_on_ours() -> None:
    def trained(seed: int) -> Holder:
        torch.manual_seed(seed)
        net = nn.Linear(40, 40)
        opt = torch.optim.Adam(net.parameters())
        if seed == 1:
            net(torch.ones(1, 40)).sum().backward()
            opt.step()
        # What a recurrent policy carries from one step to the next: in place, and where the twin has none yet.
        carried = tuple(torch.randn(1, 2, 8) for _ in range(2))
        return Holder(net=net, opt=opt, carried=carried, later=carried[0] + 1 if seed == 1 else None)

    saved, twin = trained(1), trained(2)
    snapshot = on_another_device(capture({"it": saved}, POLICY))
    graft = plan(snapshot, {"it": twin}, POLICY)
    assert graft.errors == []
    graft.apply()
    assert torch.equal(saved.net.weight, twin.net.weight)
    moments = twin.opt.state[twin.net.weight]
    assert torch.equal(moments["exp_avg"], saved.opt.state[saved.net.weight]["exp_avg"])
    for there, here in zip((*saved.carried, saved.later), (*twin.carried, twin.later), strict=True):
        assert here.device.type == "cpu" and torch.equal(there, here)
    assert [d.level for d in graft.differences].count("changed") == 1
    told = {d.place for d in graft.differences if d.level in ("changed", "moved")}
    left = {d.place for d in compare(snapshot, capture({"it": twin}, POLICY))}
    assert left
    assert left <= told


@pytest.mark.parametrize("shape", [(3, 30, 20), (30, 60)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex128])
def test_large_tensors_come_back_in_place_however_they_lie(
    dtype: torch.dtype, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "ALONE", 1000)  # from here on threads are used
    monkeypatch.setattr(memory, "PIECE", 504)
    saved = random_bits(shape, dtype, 1)
    for original, twin in (
        (saved, torch.zeros(shape, dtype=dtype)),
        (saved.mT, torch.zeros(saved.mT.shape, dtype=dtype)),
        (saved.mT, torch.zeros(shape, dtype=dtype).mT),
        (saved[..., ::2], torch.zeros(shape, dtype=dtype)[..., ::2]),
    ):
        there = Holder(it=twin)
        carry(Holder(it=original), there)
        assert there.it is twin
        assert bits(twin) == bits(original)
