"""export: what it writes is what numpy, torch and JSON readers get back, exactly."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.command import unbroken
from tests.repo.states import meta
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.settings import Settings
from unbroken.repo.repository import Repository
from unbroken.state import walk
from unbroken.state.nodes import Dict, Link, Object
from unbroken.state.snapshot import Component, Snapshot
from unbroken.store.local import LocalStore


def save(root: Path, **roots: object) -> None:
    with CheckpointEngine(
        GraftSource(roots, policy_of_loaded()), Settings(root=root, job="run"), environment={}
    ) as engine:
        engine.resume()


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


def test_arrays_as_npz(trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "state.npz"
    answer = unbroken("export", "runs", "--component", "training_state", "--to", file, "--json", cwd=trained)
    assert answer.json["entries"] == 1
    with np.load(file, allow_pickle=False) as found:
        assert np.array_equal(found["weights"], np.arange(3000.0) + 2.0)


def test_plain_values_as_json(tmp_path: Path) -> None:
    state = {
        "a": [1, 2.5, "x", None, float("inf")],
        "b": np.array([[1, 2], [3, 4]], dtype="<i2", order="F"),
        "c": {3: (True,)},
        "d": b"\x01\xff",
        "e": 2**80,
        "nan": np.array([0.5, np.nan]),
    }
    save(tmp_path / "runs", state=state, same=state["a"])
    answer = unbroken("export", "runs", "--component", "training_state", "--to", "s.json", cwd=tmp_path)
    assert answer.code == 0, answer.err
    found = json.loads((tmp_path / "s.json").read_text())
    assert found["state"] == {
        "a": [1, 2.5, "x", None, "inf"],
        "b": [[1, 2], [3, 4]],
        "c": {"#0.key": 3, "#0": [True]},
        "d": "01ff",
        "e": 2**80,
        "nan": [0.5, "nan"],
    }
    assert list(found["same"]) == ["$"]


def test_a_module_comes_back_under_its_state_dict_names(torch: Any, tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 50), torch.nn.BatchNorm1d(50), torch.nn.Linear(50, 2))
    net[2].weight.data = net[2].weight.data.to(torch.bfloat16)
    net.register_buffer("scratch", torch.ones(3), persistent=False)
    net[0].bias = torch.nn.Parameter(torch.arange(100.0)[::2])  # not contiguous
    save(tmp_path / "runs", net=net)
    answer = unbroken("export", "runs", "--to", "net.pt", cwd=tmp_path)
    assert answer.code == 0, answer.err
    found = torch.load(tmp_path / "net.pt", weights_only=True)
    expected = net.state_dict()
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    net.load_state_dict(found)


def test_tied_weights_have_both_names(torch: Any, tmp_path: Path) -> None:
    net = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3), "b": torch.nn.Linear(3, 3)})
    net["b"].weight = net["a"].weight
    save(tmp_path / "runs", net=net)
    assert unbroken("export", "runs", "--to", "net.pt", cwd=tmp_path).code == 0
    found = torch.load(tmp_path / "net.pt", weights_only=True)
    assert set(found) == {"a.weight", "a.bias", "b.weight", "b.bias"}
    assert torch.equal(found["a.weight"], found["b.weight"])


def test_several_modules_are_told_apart(torch: Any, tmp_path: Path) -> None:
    actor, critic = torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(5)
    save(tmp_path / "runs", actor=actor, critic=critic)
    assert unbroken("export", "runs", "--to", "nets.pt", cwd=tmp_path).code == 0
    found = torch.load(tmp_path / "nets.pt", weights_only=True)
    actor.load_state_dict(found["actor"])
    critic.load_state_dict(found["critic"])
    assert unbroken("export", "runs", "--to", "nets.npz", cwd=tmp_path).code == 0
    with np.load(tmp_path / "nets.npz") as arrays:
        assert np.array_equal(arrays["actor.weight"], actor.weight.detach().numpy())


def test_each_of_several_modules_is_named_by_a_line_that_can_be_typed(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nets: dict[Any, Any] = {"left": torch.nn.Linear(3, 2), "on the right": torch.nn.BatchNorm1d(5)}
    held: dict[Any, Any] = {
        "nets": nets,
        "all": [torch.nn.Linear(1, 1)],
        "by number": {7: torch.nn.Linear(2, 2)},
    }
    save(tmp_path / "runs", held=held)
    answer = unbroken("export", "runs", "--to", "nets.pt", "--json", cwd=tmp_path)
    assert answer.code == 0, answer.err
    lines: list[str] = answer.json["load"]
    assert [line.partition(".load")[0] for line in lines] == [
        "held['nets']['left']", "held['nets']['on the right']", "held['all'][0]", "held['by number'][7]",
    ]  # fmt: skip
    assert [line.partition("  # ")[2] for line in lines] == [
        "Linear, 2 tensors", "BatchNorm1d, 5 tensors", "Linear, 2 tensors", "Linear, 2 tensors",
    ]  # fmt: skip
    saved = [held["nets"]["left"].weight, held["all"][0].weight, held["by number"][7].weight]
    expected = [weight.detach().clone() for weight in saved]
    for weight in saved:
        weight.data.zero_()
    monkeypatch.chdir(tmp_path)
    for line in lines:
        exec(line, {"held": held, "torch": torch})
    for weight, before in zip(saved, expected, strict=True):
        assert torch.equal(weight, before)


def test_modules_of_an_algorithm_are_reached_from_what_a_script_of_it_has(torch: Any, tmp_path: Path) -> None:
    learned, acting = "learner/_module/_rl_modules/default_policy", "env_runner/module"
    nets = walk.capture({"a": torch.nn.Linear(3, 2), "b": torch.nn.Linear(3, 2)}, policy_of_loaded())
    weights = nets.components["policy_weights"]
    weights.roots = dict(zip((learned, acting), weights.roots.values(), strict=True))
    weights.tensors = {}
    modules = Dict(v={"default_policy": Link(to=learned, in_="policy_weights")})
    learner = Object(
        c="ray.rllib.core:L", a={"_module": Object(c="ray.rllib.core:M", a={"_rl_modules": modules})}
    )
    runner = Object(c="ray.rllib.env:R", a={"module": Link(to=acting, in_="policy_weights")})
    parts = {
        "learners": Component("learners", {"learner": learner}),
        "env_runners": Component("env_runners", {"env_runner": runner}),
        "policy_weights": weights,
    }
    with Repository.over(LocalStore(tmp_path / "runs" / "job"), "job", create=True).writer() as writer:
        writer.checkpoints.write(Snapshot(components=parts), meta(1))
    answer = unbroken("export", "runs", "--to", "w.pt", "--json", cwd=tmp_path)
    assert answer.code == 0, answer.err
    lines = dict(line.split(".load_state_dict", 1) for line in answer.json["load"])
    assert list(lines) == [
        "algo.learner_group._learner._module._rl_modules['default_policy']",
        "algo.env_runner.module",
    ]
    assert ["that is trained" in line for line in lines.values()] == [True, False]
    assert ["that acts" in line for line in lines.values()] == [False, True]


def test_bfloat16_as_numpy(torch: Any, tmp_path: Path) -> None:
    net = torch.nn.Linear(3, 3).to(torch.bfloat16)
    save(tmp_path / "runs", net=net)
    assert unbroken("export", "runs", "--to", "net.npz", cwd=tmp_path).code == 0
    with np.load(tmp_path / "net.npz") as found:
        assert np.array_equal(found["weight"], net.weight.detach().float().numpy())


def build(name: str, seed: int) -> Any:
    sb3 = pytest.importorskip("stable_baselines3")
    settings: dict[str, Any] = {"seed": seed, "device": "cpu", "policy_kwargs": {"net_arch": [16]}}
    if name in ("PPO", "A2C"):
        return getattr(sb3, name)("MlpPolicy", "CartPole-v1", n_steps=64, **settings)
    env = "CartPole-v1" if name == "DQN" else "Pendulum-v1"
    return getattr(sb3, name)("MlpPolicy", env, buffer_size=500, learning_starts=20, **settings)


@pytest.mark.parametrize("name", ["PPO", "A2C", "DQN", "SAC", "TD3", "DDPG"])
def test_the_default_is_what_the_models_policy_loads(torch: Any, tmp_path: Path, name: str) -> None:
    model = build(name, 1)
    from unbroken.sb3 import CheckpointCallback

    model.learn(64, callback=CheckpointCallback(100, str(tmp_path / "runs")))
    answer = unbroken("export", "runs", "--to", "policy.pt", cwd=tmp_path)
    assert answer.code == 0, answer.err
    line = answer.out.splitlines()[-1]
    assert line == "To load: model.policy.load_state_dict(torch.load('policy.pt', weights_only=True))"
    found = torch.load(tmp_path / "policy.pt", weights_only=True)
    assert found.keys() == model.policy.state_dict().keys()
    other = build(name, 2)
    other.policy.load_state_dict(found)
    for key, tensor in model.policy.state_dict().items():
        assert torch.equal(tensor, other.policy.state_dict()[key])


def test_target_networks_alone(torch: Any, tmp_path: Path) -> None:
    model = build("DQN", 1)
    from unbroken.sb3 import CheckpointCallback

    model.learn(64, callback=CheckpointCallback(100, str(tmp_path / "runs")))
    words = ("--component", "target_weights", "--to", "target.pt")
    answer = unbroken("export", "runs", *words, cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert "To load: model.policy.q_net_target.load_state_dict(torch.load('target.pt', " in answer.out
    model.policy.q_net_target.load_state_dict(torch.load(tmp_path / "target.pt", weights_only=True))


def test_a_run_in_shards_says_how_its_model_is_put_together(tmp_path: Path) -> None:
    repository = Repository.over(LocalStore(tmp_path / "runs" / "job"), "job", create=True)
    parts = {
        "sharding": Component("sharding", {"sharding": Dict(v={})}),
        "shards@rank0": Component("shards@rank0", {"model": 1}),
    }
    with repository.writer() as writer:
        writer.checkpoints.write(Snapshot(components=parts), meta(1))
    answer = unbroken("export", "runs", "--to", "w.pt", cwd=tmp_path)
    assert answer.code == 2
    assert "There are: sharding, shards@rank0." in answer.err
    said = " ".join(answer.err.split())
    reader = f"unbroken.dcp.StorageReader('{tmp_path}/runs', job='job', step=1)"
    assert f"dcp.load(state, storage_reader={reader})" in said
    assert "in one process" in said
    assert "torch.save" in said


def test_an_array_may_have_any_name(tmp_path: Path) -> None:
    """The function that numpy has for it takes names as its arguments."""
    save(tmp_path / "runs", file=np.arange(3), allow_pickle=np.ones(2), self=np.zeros((2, 2), order="F"))
    answer = unbroken("export", "runs", "--component", "training_state", "--to", "s.npz", cwd=tmp_path)
    assert answer.code == 0, answer.err
    with np.load(tmp_path / "s.npz") as found:
        assert set(found) == {"file", "allow_pickle", "self"}
        assert np.array_equal(found["file"], [0, 1, 2])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--to", "w.bin"), "no known format"),
        (("--to", "sb3-zip"), "--to sb3-zip writes a file"),
        (("--to", "model.zip"), "no model of Stable-Baselines3"),
        (("--to", "w.pt"), "There are: rng_states, training_state"),
        (("--to", "w.pt", "--component", "training_state"), "no tensors"),
        (("--to", "nowhere/w.npz", "--component", "training_state"), "The folder nowhere does not exist"),
        (("--to", "train.py"), "no known format"),
    ],
)
def test_what_cannot_be_exported(trained: Path, words: tuple[str, ...], says: str) -> None:
    answer = unbroken("export", "runs", *words, cwd=trained)
    assert answer.code == 2
    assert says in answer.err
    assert "Traceback" not in answer.err


def test_a_file_is_replaced_only_when_asked(trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "w.npz"
    file.write_text("mine")

    def export(*more: str) -> int:
        words = ("--component", "training_state", "--to", file, *more)
        return unbroken("export", "runs", *words, cwd=trained).code

    assert export() == 2
    assert file.read_text() == "mine"
    assert export("--force") == 0
    assert file.read_bytes().startswith(b"PK")
    assert list(tmp_path.iterdir()) == [file]


def out_of(trained: Path, place: Path, *words: object) -> Any:
    return unbroken(
        "export", trained / "runs", "--component", "training_state", "--to", place, *words, cwd=trained
    )


def test_only_a_plain_file_is_replaced(trained: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "nowhere.npz").symlink_to(tmp_path / "missing")
    (tmp_path / "folder.npz").mkdir()
    for name, what in {"pipe": "no plain file", "nowhere": "a link", "folder": "a folder"}.items():
        for words in ([], ["--force"]):
            answer = out_of(trained, tmp_path / f"{name}.npz", *words)
            assert answer.code == 2
            assert f"{name}.npz is {what}, and is not replaced." in answer.err
    assert (tmp_path / "pipe.npz").is_fifo()
    assert sorted(os.listdir(tmp_path)) == ["folder.npz", "nowhere.npz", "pipe.npz"]


def test_a_name_of_full_length_is_written(trained: Path, tmp_path: Path) -> None:
    file = tmp_path / f"{'n' * 251}.npz"
    assert out_of(trained, file).code == 0
    assert os.listdir(tmp_path) == [file.name]


def test_a_file_that_cannot_be_written_is_named(trained: Path, tmp_path: Path) -> None:
    missing = out_of(trained, tmp_path / "no/state.npz")
    assert (missing.code, missing.err.count("/no does not exist. Make it first.")) == (2, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        full = out_of(trained, tmp_path / "state.npz")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert full.code == 2
    assert "state.npz cannot be written: File too large." in full.err
    assert os.listdir(tmp_path) == []
