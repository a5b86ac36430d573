"""One process, no process group: what is saved comes back bit for bit, and without pickles where it can."""

from __future__ import annotations

import math
from collections import OrderedDict
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItem

import unbroken.dcp
from unbroken.adapters.dcp.plain import is_plain, of_value, value_of
from unbroken.errors import ConfigError, CorruptObject, NotCapturable, RunBusy, SaveFailed
from unbroken.repo.repository import Repository, jobs
from unbroken.state.nodes import Array, Float, Int

dcp: Any = import_module("torch.distributed.checkpoint")
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


class Thing:
    """Of a class that torch can only pickle."""

    def __init__(self) -> None:
        self.answer = 42


def save(root: Path, state: dict[str, Any], **options: Any) -> Any:
    writer = unbroken.dcp.StorageWriter(root, **options)
    try:
        return dcp.save(state, storage_writer=writer)
    finally:
        writer.close()


def load(root: Path, state: dict[str, Any], **options: Any) -> dict[str, Any]:
    dcp.load(state, storage_reader=unbroken.dcp.StorageReader(root, **options))
    return state


def cause(error: pytest.ExceptionInfo[CheckpointException]) -> BaseException:
    ((found, _),) = error.value.failures.values()
    return found


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


TENSORS: dict[str, torch.Tensor] = {
    "float32": torch.randn(3, 4),
    "nan": torch.tensor([math.nan, -0.0, math.inf]),
    "bfloat16": torch.randn(700).bfloat16(),
    "float8": torch.randn(5).to(torch.float8_e4m3fn),
    "complex": torch.randn(2, 2, dtype=torch.complex64),
    "bool": torch.tensor([True, False]),
    "int64": torch.arange(300),
    "uint16": torch.arange(9).to(torch.uint16),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.zeros(0, 7),
    "transposed": torch.arange(2000.0).reshape(40, 50).t(),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "large": torch.arange(700_000),  # of several chunks
}


def test_tensors_of_every_kind_come_back_bit_for_bit(tmp_path: Path) -> None:
    save(tmp_path / "run", {"deep": [{"er": TENSORS}]}, step=1)
    blank = {name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()}
    load(tmp_path / "run", {"deep": [{"er": blank}]})
    for name, tensor in TENSORS.items():
        assert blank[name].dtype == tensor.dtype
        assert bits(blank[name]) == bits(tensor.detach()), name


def test_lazily_conjugated_values_are_saved_as_what_they_are(tmp_path: Path) -> None:
    tensor = torch.randn(4, dtype=torch.complex64)
    save(tmp_path / "run", {"t": tensor.conj()}, step=1)
    found = load(tmp_path / "run", {"t": torch.zeros(4, dtype=torch.complex64)})["t"]
    assert torch.equal(found, tensor.conj())


VALUES: dict[str, Any] = {
    "lr": 0.1,
    "betas": (0.9, 0.999),
    "none": None,
    "flag": True,
    "huge": 2**200,
    "infinite": -math.inf,
    "bytes": b"\x00\xff",
    "text": "ü / ~ \udcff",
    "numbers": ({1: "a", 2: [3, (4,)]},),
    "generator": np.random.default_rng(1).bit_generator.state,
}


def emptied(value: Any) -> Any:
    """Return dicts of the same keys, all the way down, with nothing in them."""
    return {key: emptied(item) for key, item in value.items()} if isinstance(value, dict) else None


def test_plain_values_come_back_without_a_pickle(tmp_path: Path) -> None:
    save(tmp_path / "run", {"options": VALUES}, step=1)
    repository = Repository.open(tmp_path / "run", "run")
    assert repository.manifest(repository.commits()[0]).opaque == []
    found = load(tmp_path / "run", {"options": emptied(VALUES)})["options"]
    assert repr(found) == repr(VALUES)


def test_what_is_an_object_is_a_pickle_and_is_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNBROKEN_KEY", "a key of this test, and nothing else")
    state = {"thing": Thing(), "ordered": OrderedDict(a=Thing()), "lr": 0.1}
    with pytest.warns(UserWarning, match="Can only be pickled"):
        save(tmp_path / "run", state, step=1)
    repository = Repository.open(tmp_path / "run", "run")
    assert len(repository.manifest(repository.commits()[0]).opaque) == 2
    assert load(tmp_path / "run", {"thing": None})["thing"].answer == 42
    monkeypatch.setenv("UNBROKEN_KEY", "another key than that of the writer")
    with pytest.raises(
        CheckpointException,
        match=r"pickled parts that are signed with the key \w+, which is not held here: thing",
    ):
        load(tmp_path / "run", {"thing": None})
    assert load(tmp_path / "run", {"lr": None})["lr"] == 0.1


@pytest.mark.parametrize("value", [{1}, OrderedDict(), np.float64(1), Thing(), object, 1j, [*([[]] * 2)]])
def test_what_would_not_come_back_as_it_was_is_not_plain(value: object) -> None:
    assert not is_plain(value)


def test_what_is_nested_too_deeply_is_not_plain() -> None:
    value: list[Any] = []
    for _ in range(60):
        value = [value]
    assert not is_plain(value)


@pytest.mark.parametrize("node", [Int(v="x"), Float(v="zz"), Array(d="<f4", s=(1,))])
def test_a_node_that_is_no_plain_value_is_damage(node: Any) -> None:
    with pytest.raises(CorruptObject):
        value_of(node)
    assert value_of(of_value((1, [2.5]))) == (1, [2.5])


def test_the_metadata_is_rebuilt_as_torch_made_it(tmp_path: Path) -> None:
    made = save(tmp_path / "run", {"model": {"weight": torch.ones(2, 3)}, "epochs": [1, {"a": 2}]}, step=1)
    found = unbroken.dcp.StorageReader(tmp_path / "run").read_metadata()
    assert found.state_dict_metadata == made.state_dict_metadata
    assert found.planner_data == made.planner_data
    assert found.storage_data == made.storage_data
    assert found.version == made.version


def test_old_checkpoints_go_and_what_did_not_change_is_in_one_pack(tmp_path: Path) -> None:
    root, frozen = tmp_path / "run", torch.arange(100_000.0)
    writer = unbroken.dcp.StorageWriter(root, keep_last=2)
    for step in range(1, 5):
        state = {"frozen": frozen, "moving": torch.full((1000,), float(step))}
        dcp.save(state, storage_writer=writer, checkpoint_id=str(step))
    writer.close()
    repository = Repository.open(root, "run")
    assert [commit.step for commit in repository.commits()] == [4, 3]
    assert len(list((root / "run" / "steps").iterdir())) == 2
    size = sum(path.stat().st_size for path in (root / "run" / "packs").rglob("*.pack"))
    assert frozen.nbytes / 20 < size < 1.1 * frozen.nbytes
    assert load(root, {"moving": torch.zeros(1000)}, step=3)["moving"][0] == 3
    assert torch.equal(load(root, {"frozen": torch.zeros(100_000)})["frozen"], frozen)


def test_the_run_is_held_between_saves_and_given_back(tmp_path: Path) -> None:
    writer = unbroken.dcp.StorageWriter(tmp_path / "run", step=1)
    dcp.save({"a": 1}, storage_writer=writer)
    repository = Repository.open(tmp_path / "run", "run")
    with pytest.raises(RunBusy):
        repository.writer()
    dcp.save({"a": 2}, storage_writer=unbroken.dcp.StorageWriter(tmp_path / "run", step=2))
    assert {commit.epoch for commit in repository.commits()} == {1}
    writer.close()
    repository.writer().close()
    dcp.save({"a": 3}, storage_writer=writer, checkpoint_id="3")  # takes the run again
    writer.close()
    assert [(commit.step, commit.epoch) for commit in repository.commits()] == [(3, 3), (2, 1), (1, 1)]


def test_a_save_that_is_overtaken_by_another_is_given_up(tmp_path: Path) -> None:
    root = tmp_path / "run"

    class Overtaken(DefaultSavePlanner):
        def resolve_data(self, write_item: WriteItem) -> Any:
            dcp.save({"b": 2}, storage_writer=unbroken.dcp.StorageWriter(root, step=2))
            return super().resolve_data(write_item)

    writer = unbroken.dcp.StorageWriter(root, step=1)
    with pytest.raises(CheckpointException, match="another save was begun before it ended") as error:
        dcp.save({"a": 1}, storage_writer=writer, planner=Overtaken())
    assert isinstance(cause(error), SaveFailed)
    dcp.save({"c": 3}, storage_writer=writer, checkpoint_id="3")
    writer.close()
    repository = Repository.open(root, "run")
    assert [commit.step for commit in repository.commits()] == [3, 2]
    assert len(list((root / "run" / "steps").iterdir())) == 2
    assert all(repository.verify(commit) == [] for commit in repository.commits())


def test_a_tensor_that_is_no_plain_memory_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointException, match="sparse is a sparse_coo tensor") as error:
        save(tmp_path / "run", {"sparse": torch.eye(3).to_sparse()}, step=1)
    assert isinstance(cause(error), NotCapturable)
    assert Repository.open(tmp_path / "run", "run").commits() == []


@pytest.mark.parametrize("step", ["a", -1, 1.5, True, "runs/step-3"])
def test_what_is_no_step_is_refused(tmp_path: Path, step: Any) -> None:
    with pytest.raises(ConfigError, match="is no step of a run"):
        unbroken.dcp.StorageReader(tmp_path / "run", step=step)
    with pytest.raises(ConfigError, match="is no step of a run"):
        unbroken.dcp.StorageWriter(tmp_path / "run").reset(step)
    assert not unbroken.dcp.StorageWriter.validate_checkpoint_id(step)


def test_a_reader_says_what_is_missing_and_makes_nothing(tmp_path: Path) -> None:
    reader = unbroken.dcp.StorageReader(tmp_path / "none")
    assert reader.latest_step() is None
    with pytest.raises(ConfigError, match="There is no run 'none'"):
        reader.read_metadata()
    assert not (tmp_path / "none").exists()
    save(tmp_path / "run", {"a": 1}, step=3)
    assert unbroken.dcp.StorageReader(tmp_path / "run").latest_step() == 3
    with pytest.raises(ConfigError, match="no state of rank 4"):
        unbroken.dcp.StorageReader(tmp_path / "run").rank_state({}, of=4)
    with pytest.raises(CheckpointException, match=r"no checkpoint of step 9. It has: 3\."):
        load(tmp_path / "run", {"a": 0}, step=9)
    assert jobs(tmp_path / "run") == ["run"]


def test_a_checkpoint_of_another_loop_is_named_as_such(tmp_path: Path) -> None:
    run = unbroken.Run(tmp_path / "run", quiet=True)
    run.track(numbers=[1])
    for _ in run.steps(1):
        pass
    with pytest.raises(ConfigError, match=r"is none of unbroken\.dcp"):
        unbroken.dcp.StorageReader(tmp_path / "run").read_metadata()


def test_memory_may_change_its_size_after_it_was_saved(tmp_path: Path) -> None:
    large, small = torch.arange(3000.0), torch.arange(4.0)
    save(tmp_path / "run", {"large": large, "small": small}, step=1)
    assert [tensor.untyped_storage().resizable() for tensor in (large, small)] == [True, True]
