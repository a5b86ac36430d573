"""Networks, optimizers and schedulers go on where they were: one more update is equal bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from unbroken.capture.numpy_random import POLICY as NUMPY
from unbroken.capture.torch import POLICY as TORCH
from unbroken.capture.torch import TARGETS, tensor_table
from unbroken.errors import NotCapturable
from unbroken.state.diff import compare
from unbroken.state.graft import Graft, plan
from unbroken.state.nodes import Array, Coded, Dict, Tuple, Value
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


def restore(saved: Snapshot, twin: Any) -> Graft:
    graft = plan(saved, {"it": twin}, POLICY)
    assert graft.errors == []
    graft.apply()
    assert compare(saved, capture({"it": twin}, POLICY)) == []
    return graft


def carry(original: Any, twin: Any, travel: Travel = lambda s: s) -> Graft:
    return restore(travel(capture({"it": original}, POLICY)), twin)


def parameters_equal(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in pairs)


class Training:
    """A network that learns a fixed target."""

    def __init__(
        self,
        seed: int,
        make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(4, 40), nn.BatchNorm1d(40), nn.Tanh(), nn.Linear(40, 2)).to(dtype)
        self.optimizer = make(list(self.net.parameters()))
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = dtype

    def update(self, times: int = 1) -> None:
        for _ in range(times):
            batch = torch.randn(16, 4, generator=self.generator).to(self.dtype)
            self.optimizer.zero_grad()
            (self.net(batch) - batch[:, :2]).pow(2).mean().backward()
            self.optimizer.step()


def two_groups(p: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [{"params": p[:2], "lr": 1e-2}, {"params": p[2:]}]


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "adam": lambda p: torch.optim.Adam(p, lr=3e-3, foreach=False),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=3e-3, foreach=True),
    "adam fused": lambda p: torch.optim.Adam(p, lr=3e-3, fused=True),
    "adam amsgrad": lambda p: torch.optim.Adam(p, lr=3e-3, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=3e-3, weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, alpha=0.99, eps=1e-5, centered=True, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "rate in a tensor": lambda p: torch.optim.Adam(p, lr=torch.tensor(3e-3), foreach=False),
    "two groups": lambda p: torch.optim.Adam(two_groups(p), lr=1e-3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("warm_twin", [False, True], ids=["new twin", "used twin"])
def test_one_more_update_is_equal_bit_for_bit(name: str, warm_twin: bool, travel: Travel) -> None:
    original, twin = Training(1, OPTIMIZERS[name]), Training(2, OPTIMIZERS[name])
    original.update(3)
    twin.update(2 * warm_twin)
    own = list(twin.net.parameters())
    carry(original, twin, travel)
    assert [a is b for a, b in zip(twin.net.parameters(), own, strict=True)] == [True] * len(own)
    assert all(any(key is p for p in own) for key in twin.optimizer.state)
    original.update()
    twin.update()
    assert parameters_equal(original.net, twin.net)
    original.update(5)
    twin.update(5)
    assert compare(capture({"it": original}, POLICY), capture({"it": twin}, POLICY)) == []


def test_a_cold_optimizer_gives_another_update() -> None:
    """The control: without the moments the next update differs."""
    make = OPTIMIZERS["adam foreach"]
    original, twin = Training(1, make), Training(2, make)
    original.update(3)
    carry(original, twin)
    twin.optimizer.state.clear()
    original.update()
    twin.update()
    assert not parameters_equal(original.net, twin.net)


def test_hyper_parameters_keep_their_types(travel: Travel) -> None:
    def make(p: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(p, lr=1.0, betas=(0.9, 0.999), weight_decay=0, eps=1e-8)

    original, twin = Training(1, make), Training(2, make)
    original.optimizer.param_groups[0]["lr"] = 2.0
    carry(original, twin, travel)
    group = twin.optimizer.param_groups[0]
    assert repr([group[k] for k in ("lr", "weight_decay", "betas", "eps", "foreach")]) == (
        "[2.0, 0, (0.9, 0.999), 1e-08, None]"
    )


def test_moments_in_half_precision_stay_so(travel: Travel) -> None:
    make = OPTIMIZERS["adam"]
    original, twin = Training(1, make, torch.bfloat16), Training(2, make, torch.bfloat16)
    original.update(3)
    carry(original, twin, travel)
    moments = twin.optimizer.state[next(twin.net.parameters())]
    assert moments["exp_avg"].dtype == torch.bfloat16 and moments["step"].dtype == torch.float32
    original.update()
    twin.update()
    assert parameters_equal(original.net, twin.net)


class MixedPrecision:
    """Weights in half precision, updated through masters in full precision."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.net = nn.Linear(40, 40).to(torch.bfloat16)
        self.masters = [nn.Parameter(p.detach().float()) for p in self.net.parameters()]
        self.optimizer = torch.optim.Adam(self.masters, lr=1e-4)

    def update(self) -> None:
        self.net.zero_grad()
        self.net(torch.ones(2, 40, dtype=torch.bfloat16)).float().pow(2).mean().backward()
        for master, p in zip(self.masters, self.net.parameters(), strict=True):
            assert p.grad is not None
            master.grad = p.grad.float()
        self.optimizer.step()
        with torch.no_grad():
            for master, p in zip(self.masters, self.net.parameters(), strict=True):
                p.copy_(master)


def test_masters_in_full_precision(travel: Travel) -> None:
    original, twin = MixedPrecision(1), MixedPrecision(2)
    for _ in range(3):
        original.update()
    carry(original, twin, travel)
    for training in (original, twin):
        training.update()
    assert parameters_equal(original.net, twin.net)
    assert all(torch.equal(a, b) for a, b in zip(original.masters, twin.masters, strict=True))


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 7),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "plateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "sequence": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [torch.optim.lr_scheduler.ConstantLR(o, 0.1), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)],
        [2],
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedules_go_on(name: str, travel: Travel) -> None:
    def build(seed: int) -> Holder:
        training = Training(seed, OPTIMIZERS["adam"])
        return Holder(training=training, scheduler=SCHEDULERS[name](training.optimizer))

    def advance(it: Holder, times: int) -> list[float]:
        rates: list[float] = []
        for _ in range(times):
            it.training.update()
            it.scheduler.step(*([1.0] if name == "plateau" else []))
            rates.append(float(it.training.optimizer.param_groups[0]["lr"]))
        return rates

    original, twin = build(1), build(2)
    advance(original, 3)
    saved = travel(capture({"it": original}, POLICY))
    assert set(saved.components) == {
        "policy_weights", "optimizer_states", "scheduler_states", "training_state"
    }  # fmt: skip
    restore(saved, twin)
    assert advance(twin, 4) == advance(original, 4)
    assert parameters_equal(original.training.net, twin.training.net)


class ActorCritic:
    """Two heads on one body, a target network, and every alias that libraries keep."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        body = nn.Linear(4, 40)
        self.actor = nn.Sequential(body, nn.Linear(40, 2))
        self.critic = nn.Sequential(body, nn.Linear(40, 1))
        self.critic_target = nn.Sequential(nn.Linear(4, 40), nn.Linear(40, 1))
        self.critic_target.load_state_dict(self.critic.state_dict())
        self.policy = nn.ModuleDict({"actor": self.actor, "critic": self.critic})
        self.optimizer = torch.optim.Adam(self.policy.parameters())
        self.flat = list(self.policy.parameters())


def test_aliases_between_actor_and_critic(travel: Travel) -> None:
    original, twin = ActorCritic(1), ActorCritic(2)
    carry(original, twin, travel)
    assert twin.actor[0] is twin.critic[0] and twin.policy["actor"] is twin.actor
    assert twin.flat[0] is twin.actor[0].weight is twin.optimizer.param_groups[0]["params"][0]
    assert parameters_equal(original.policy, twin.policy)
    assert parameters_equal(original.critic_target, twin.critic_target)


def test_components_and_their_tables() -> None:
    saved = capture({"it": ActorCritic(1)}, POLICY)
    weights, targets = saved.components["policy_weights"], saved.components["target_weights"]
    assert list(targets.tensors) == ["it/critic_target"]
    assert list(targets.tensors["it/critic_target"]) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert {"it/actor", "it/critic", "it/policy"} == set(weights.tensors)
    # Two modules with the same names, one tensor of which is in both: each has a table of its own.
    actor, critic = weights.tensors["it/actor"], weights.tensors["it/critic"]
    assert set(actor) == set(critic) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert actor["0.weight"] == critic["0.weight"]
    assert actor["1.weight"] != critic["1.weight"]
    assert {"actor.0.weight", "critic.0.weight", "critic.1.bias"} <= set(weights.tensors["it/policy"])
    assert "optimizer_states" in saved.components


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_target_networks_are_known_by_name(name: str) -> None:
    saved = capture({"it": Holder(**{name: nn.Linear(2, 2), "net": nn.Linear(2, 2)})}, POLICY)
    assert list(saved.components["target_weights"].roots) == [f"it/{name}"]
    assert list(saved.components["policy_weights"].roots) == ["it/net"]


def test_a_table_names_what_a_state_dict_names() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
            self.tied = self.body[0]
            self.register_buffer("kept", torch.ones(1))
            self.register_buffer("not_kept", torch.ones(1), persistent=False)

    net = Net()
    assert list(tensor_table(net)) != []
    assert set(tensor_table(net)) == set(net.state_dict())
    assert all(tensor_table(net)[k] is v for k, v in net.state_dict(keep_vars=True).items())


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda: nn.Linear(4, 8), lambda: nn.Linear(4, 9)),
        (lambda: nn.Linear(4, 8), lambda: nn.Linear(4, 8, bias=False)),
        (lambda: nn.Linear(4, 8, bias=False), lambda: nn.Linear(4, 8)),
        (lambda: nn.Linear(4, 8), lambda: nn.Linear(4, 8, dtype=torch.float64)),
        (lambda: nn.Sequential(nn.Linear(2, 2)), lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))),
        (
            lambda: nn.Sequential(nn.Linear(2, 2), nn.Tanh()),
            lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU()),
        ),
        (lambda: None, lambda: nn.Linear(4, 8)),
        (lambda: nn.GRU(4, 8), lambda: nn.LSTM(4, 8)),
    ],
    ids=["width", "bias gone", "bias new", "dtype", "depth", "activation", "new", "class"],
)
def test_another_network_is_an_error_and_is_not_touched(
    make: Callable[[], nn.Module | None], other: Callable[[], nn.Module | None]
) -> None:
    saved = capture({"it": Holder(net=make())}, POLICY)
    twin = Holder(net=other())
    before = capture({"it": twin}, POLICY)
    assert plan(saved, {"it": twin}, POLICY).errors != []
    assert compare(before, capture({"it": twin}, POLICY)) == []


def test_another_optimizer_is_an_error() -> None:
    saved = capture({"it": Training(1, OPTIMIZERS["adam"])}, POLICY)
    assert plan(saved, {"it": Training(1, OPTIMIZERS["sgd"])}, POLICY).errors != []


def test_hooks_are_the_programs_own(travel: Travel) -> None:
    original, twin = nn.Linear(2, 2), nn.Linear(2, 2)
    calls: list[int] = []
    original.register_forward_hook(lambda *_: calls.append(1))
    twin.register_forward_hook(lambda *_: calls.append(2))
    carry(Holder(net=original), Holder(net=twin), travel)
    twin(torch.ones(1, 2))
    assert calls == [2]


def test_training_mode_comes_back(travel: Travel) -> None:
    original, twin = nn.Dropout(), nn.Dropout()
    original.eval()
    carry(Holder(net=original), Holder(net=twin), travel)
    assert not twin.training


def test_recurrent_networks(travel: Travel) -> None:
    original, twin = nn.LSTM(3, 5, num_layers=2), nn.LSTM(3, 5, num_layers=2)
    carry(Holder(net=original), Holder(net=twin), travel)
    assert all(p is q for p, q in zip(twin._flat_weights, twin.parameters(), strict=True))
    x = torch.ones(2, 1, 3)
    assert torch.equal(original(x)[0], twin(x)[0])


def test_compiled_and_parallel_modules(travel: Travel) -> None:
    def build(seed: int) -> Holder:
        torch.manual_seed(seed)
        net = nn.Linear(4, 40)
        return Holder(
            net=net,
            compiled=torch.compile(net),
            parallel=nn.DataParallel(nn.Linear(4, 3)),
            optimizer=torch.optim.Adam(net.parameters()),
        )

    original, twin = build(1), build(2)
    compiled = twin.compiled
    carry(original, twin, travel)
    assert twin.compiled is compiled and twin.compiled._orig_mod is twin.net
    assert parameters_equal(original.net, twin.net)
    assert parameters_equal(original.parallel, twin.parallel)


def test_a_lazy_module_has_to_have_run() -> None:
    ran, lazy = nn.LazyLinear(3), nn.LazyLinear(3)
    saved_lazy = capture({"it": Holder(net=nn.LazyLinear(3))}, POLICY)
    ran(torch.ones(1, 2))
    errors = plan(capture({"it": Holder(net=ran)}, POLICY), {"it": Holder(net=lazy)}, POLICY).errors
    assert any("forward pass" in e.detail or "Linear" in e.detail for e in errors)
    assert plan(saved_lazy, {"it": Holder(net=lazy)}, POLICY).errors == []


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # deprecated, and still in use
def test_a_scripted_module_is_named() -> None:
    with pytest.raises(NotCapturable, match="it/net"):
        capture({"it": Holder(net=torch.jit.script(nn.Linear(2, 2)))}, POLICY)


def everything(seed: int) -> Holder:
    """One object with all kinds of tensors and generators, sharing what can be shared."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    bits = np.random.PCG64(seed)
    base = torch.randn(6, 7)
    vector = torch.randn(12)
    normal = torch.distributions.Normal(torch.randn(2), torch.ones(2))
    net = nn.Sequential(nn.Linear(7, 40), nn.BatchNorm1d(40))
    optimizer = torch.optim.Adam(net.parameters())
    net(base).sum().backward()
    optimizer.step()
    it = Holder(
        bf16=torch.randn(5).to(torch.bfloat16),
        fp8=torch.randn(5).to(torch.float8_e4m3fn),
        flags=torch.randn(5) > 0,
        waves=torch.randn(3, dtype=torch.complex64),
        scalar=torch.randn(()),
        empty=torch.empty(0, 3),
        transposed=base.t(),
        base=base,
        row=base[2],
        halves=[nn.Parameter(vector[:6]), nn.Parameter(vector[6:].view(2, 3))],
        vector=vector,
        net=net,
        optimizer=optimizer,
        normal=normal,
        values=[torch.Size([2, seed]), torch.device("cpu"), torch.bfloat16, torch.strided],
        torch_generator=torch.Generator().manual_seed(seed),
        generators=[np.random.Generator(bits), np.random.Generator(bits)],
        kinds=[getattr(np.random, kind)(seed) for kind in ("MT19937", "Philox", "SFC64", "PCG64DXSM")],
        spawned=rng.spawn(seed),
        rng=rng,
        legacy=np.random.RandomState(seed),
        python=random.Random(seed),
    )
    it.legacy.randn(seed)
    vars(it)["itself"] = it
    return it


def test_everything_at_once(travel: Travel) -> None:
    original, twin = everything(3), everything(4)
    carry(original, twin, travel)
    assert twin.itself is twin
    twin.vector.zero_()
    assert not twin.halves[0].any() and not twin.halves[1].any()


def test_everything_at_once_over_little(travel: Travel) -> None:
    """Only what may never be built has to be there."""
    original, fresh = everything(3), everything(4)
    twin = Holder(net=fresh.net, optimizer=fresh.optimizer, halves=fresh.halves)
    carry(original, twin, travel)
    assert twin.row.untyped_storage().data_ptr() == twin.base.untyped_storage().data_ptr()


def test_plain_values_of_torch(travel: Travel) -> None:
    values = {
        "size": torch.Size([2, 3]),
        "device": torch.device("cpu"),
        "other_device": torch.device("cuda:3"),
        "dtype": torch.bfloat16,
        "layout": torch.sparse_coo,
        "format": torch.channels_last,
        "scheme": torch.per_tensor_affine,
    }
    twin = Holder(**dict.fromkeys(values))
    carry(Holder(**values), twin, travel)
    assert vars(twin) == values
    assert type(twin.size) is torch.Size


def test_the_programs_device_stays() -> None:
    saved = capture({"it": Holder(device=torch.device("cpu"))}, POLICY)
    twin = Holder(device=torch.device("meta"))
    graft = plan(saved, {"it": twin}, POLICY)
    assert [d.level for d in graft.differences] == ["changed"]
    graft.apply()
    assert twin.device == torch.device("meta")


def test_distributions_are_built(travel: Travel) -> None:
    mean = torch.zeros(2, requires_grad=True) * 3
    original = Holder(
        normal=torch.distributions.Normal(mean, torch.ones(2)),
        choice=torch.distributions.Categorical(logits=torch.randn(3, 5)),
    )
    twin = Holder(normal=None, choice=None)
    carry(original, twin, travel)
    assert type(twin.normal) is torch.distributions.Normal
    likely: list[Any] = [it.normal.log_prob(torch.ones(2)) for it in (original, twin)]
    assert torch.equal(*likely)
    assert torch.equal(twin.choice.logits, original.choice.logits)


def test_a_generator_goes_on_in_place(travel: Travel) -> None:
    original, twin = Holder(g=torch.Generator(), new=torch.Generator()), Holder(g=torch.Generator(), new=None)
    torch.randn(3, generator=original.g.manual_seed(3))  # three normals leave one in reserve
    own = twin.g
    carry(original, twin, travel)
    assert twin.g is own
    for name in ("g", "new"):
        draw = [torch.randn(101, generator=getattr(it, name)) for it in (original, twin)]
        assert torch.equal(*draw)


@pytest.mark.parametrize(
    "payload",
    [
        None,
        Dict(v={}),
        Dict(v={"device": "nowhere", "state": Array(d="|u1", s=(1,), data=b"\0")}),
        Dict(v={"device": "cpu", "state": Array(d="|u1", s=(1,), data=b"\0")}),
        Dict(v={"device": "cpu", "state": Array(d="|u1", s=(5056,), data=b"\xff" * 5056)}),
    ],
)
@pytest.mark.parametrize("own", [True, False], ids=["in place", "new"])
def test_a_forged_generator_is_refused_and_the_live_one_is_not_touched(payload: Value, own: bool) -> None:
    saved = capture({"it": Holder(g=torch.Generator())}, POLICY)
    root: Any = saved.components["training_state"].roots["it"]
    root.a["g"].v = payload
    twin = Holder(g=torch.Generator().manual_seed(4) if own else None)
    assert plan(saved, {"it": twin}, POLICY).errors != []
    if own:
        assert torch.equal(twin.g.get_state(), torch.Generator().manual_seed(4).get_state())


@pytest.mark.parametrize(
    "forged",
    [
        Coded(k="torch.constant", c="torch:dtype", v="torch.load"),
        Coded(k="torch.constant", c="torch:dtype", v=None),
        Coded(k="torch.size", c="torch:Size", v=Tuple(v=["a"])),
        Coded(k="torch.size", c="torch:Size", v=3),
        Coded(k="torch.device", c="torch:device", v="rm -rf"),
        Coded(k="torch.script", c="torch.jit._script:ScriptModule", v=None),
        Coded(k="torch.memory", c="", v=None),
    ],
)
def test_forged_values_are_refused(forged: Coded) -> None:
    saved = capture({"it": Holder(x=1)}, POLICY)
    root: Any = saved.components["training_state"].roots["it"]
    root.a["x"] = forged
    assert plan(saved, {"it": Holder(x=None)}, POLICY).errors != []


def test_of_a_tensordict_of_parameters_it_does_not_matter_where_it_was_used_last() -> None:
    tensordict: Any = pytest.importorskip("tensordict")
    net = nn.Linear(2, 2)
    used, unused = (tensordict.TensorDictParams(tensordict.TensorDict.from_module(net)) for _ in range(2))
    with used.to_module(net):
        pass
    assert used._last_op is not None
    saved = capture({"it": Holder(parameters=used)}, POLICY)
    assert saved.notes == []
    assert plan(saved, {"it": Holder(parameters=unused)}, POLICY).differences == []
