"""The process's own generators go on in a process that was started anew."""

# ruff: noqa: NPY002 - the legacy generator of numpy is what is tested
from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unbroken.capture.generators import POLICY as GENERATORS
from unbroken.capture.generators import GlobalGenerators, live_generators
from unbroken.capture.numpy_random import POLICY as NUMPY
from unbroken.capture.torch import POLICY as TORCH
from unbroken.state.diff import compare
from unbroken.state.graft import plan
from unbroken.state.nodes import Dict
from unbroken.state.policy import Phase
from unbroken.state.snapshot import Snapshot
from unbroken.state.walk import capture

Travel = Callable[[Snapshot], Snapshot]
POLICY = NUMPY.merged(GENERATORS, TORCH)

PROGRAM = """
import json, pickle, random, sys
import numpy as np
mode, path, with_torch = sys.argv[1], sys.argv[2], sys.argv[3] == "torch"
if with_torch:
    import torch
from unbroken.capture.generators import GlobalGenerators
from unbroken.capture.policies import default_policy
from unbroken.state.graft import plan
from unbroken.state.walk import capture

class Env:
    def __init__(self, seed):
        self.np_random = np.random.Generator(np.random.PCG64(seed))
        self.same = np.random.Generator(self.np_random.bit_generator)
        self.old = np.random.RandomState(seed)
        self.own = random.Random(seed)
        self.kinds = [getattr(np.random, k)(seed) for k in ("MT19937", "Philox", "SFC64", "PCG64DXSM")]
        if with_torch:
            self.torch = torch.Generator().manual_seed(seed)

def draws(env):
    found = {
        "python": [random.random() for _ in range(50)] + [random.gauss(0, 1) for _ in range(50)],
        "numpy": np.random.rand(50).tolist() + np.random.randn(51).tolist(),
        "pcg": env.np_random.normal(size=50).tolist() + env.same.integers(9, size=50).tolist(),
        "old": env.old.randn(101).tolist(),
        "own": [env.own.gauss(0, 1) for _ in range(100)],
        "kinds": [[bits.random_raw() for _ in range(100)] for bits in env.kinds],
        "children": [float(g.random()) for g in env.np_random.spawn(3)],
    }
    if with_torch:
        found["torch"] = torch.randn(101).tolist()
        found["torch own"] = torch.randn(101, generator=env.torch).tolist()
    return found

seed = 3 if mode == "save" else 4
random.seed(seed); np.random.seed(seed)
if with_torch:
    torch.manual_seed(seed)
env = Env(seed)
roots = {"env": env, "generators": GlobalGenerators()}
if mode == "save":
    draws(env)
    with open(path, "wb") as file:
        pickle.dump(capture(roots, default_policy()), file)
elif mode == "resume":
    with open(path, "rb") as file:
        plan(pickle.load(file), roots, default_policy()).apply()
print(json.dumps(draws(env)))
"""


def run(mode: str, path: Path, with_torch: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, mode, str(path), with_torch],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("with_torch", ["torch", "no torch"])
def test_the_next_draws_in_a_fresh_process_are_equal(with_torch: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    expected = run("save", path, with_torch)
    assert run("resume", path, with_torch) == expected
    cold = run("cold", path, with_torch)
    assert [name for name in expected if cold[name] == expected[name]] == [], "the control differs everywhere"


def test_nothing_is_imported_for_it() -> None:
    program = (
        "import sys; from unbroken.capture.policies import default_policy; default_policy();"
        "from unbroken.capture.generators import live_generators; print(*live_generators());"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["python", "numpy"]


@pytest.fixture(autouse=True)
def leave_generators_alone() -> Any:
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])
    torch.set_rng_state(before[2])


def draw_all() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def test_they_come_back_in_this_process(travel: Travel) -> None:
    saved = travel(capture({"all": GlobalGenerators()}, POLICY))
    assert set(saved.components) == {"training_state", "rng_states"}
    expected = draw_all()
    graft = plan(saved, {"all": GlobalGenerators()}, POLICY)
    assert graft.differences == []
    graft.apply()
    assert draw_all() == expected


def test_they_are_restored_last() -> None:
    saved = capture({"all": GlobalGenerators()}, POLICY)
    expected = draw_all()
    graft = plan(saved, {"all": GlobalGenerators()}, POLICY)
    for phase in (Phase.WRITE, Phase.WORLD):
        graft.write(draw_all, phase=phase)  # a simulator that draws while it is restored
    graft.apply()
    assert draw_all() == expected


def test_a_reference_to_one_of_them_stays_a_reference(travel: Travel) -> None:
    class Env:
        def __init__(self) -> None:
            self.np_random = np.random.mtrand._rand
            self.torch = torch.default_generator

    saved = travel(capture({"env": Env(), "all": GlobalGenerators()}, POLICY))
    twin: Any = Env()
    twin.np_random, twin.torch = np.random.RandomState(5), torch.Generator()
    graft = plan(saved, {"env": twin, "all": GlobalGenerators()}, POLICY)
    assert graft.errors != [], "the twin draws from generators of its own: not what was saved"
    graft = plan(saved, {"all": GlobalGenerators(), "env": Env()}, POLICY)
    assert graft.errors == []


def test_more_and_fewer_devices_are_reported() -> None:
    saved = capture({"all": GlobalGenerators()}, POLICY)
    root = saved.components["rng_states"].roots["all"]
    payload: Any = getattr(root, "v", None)
    assert isinstance(payload, Dict) and payload.v is not None
    payload.v["cuda:7"] = payload.v.pop("torch")
    graft = plan(saved, {"all": GlobalGenerators()}, POLICY)
    assert sorted((d.level, "cuda:7" in d.detail, "torch" in d.detail) for d in graft.differences) == [
        ("fresh", False, True),
        ("lost", True, False),
    ]
    assert graft.errors == []


def test_torch_saved_and_not_imported_now_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = capture({"all": GlobalGenerators()}, POLICY)
    monkeypatch.delitem(sys.modules, "torch")
    graft = plan(saved, {"all": GlobalGenerators()}, NUMPY.merged(GENERATORS))
    assert ["import torch" in d.detail for d in graft.errors] == [True]


def test_a_skeleton_says_which_there_are_and_nothing_of_their_states() -> None:
    before = capture({"all": GlobalGenerators()}, POLICY, contents=False)
    draw_all()
    assert compare(before, capture({"all": GlobalGenerators()}, POLICY, contents=False)) == []
    assert repr(GlobalGenerators()) == f"GlobalGenerators({', '.join(live_generators())})"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_every_cuda_device() -> None:
    torch.cuda.init()  # type: ignore[no-untyped-call]
    devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    saved = capture({"all": GlobalGenerators()}, POLICY)
    expected = [torch.rand(5, device=d).tolist() for d in devices]
    graft = plan(saved, {"all": GlobalGenerators()}, POLICY)
    assert graft.differences == []
    graft.apply()
    assert [torch.rand(5, device=d).tolist() for d in devices] == expected
