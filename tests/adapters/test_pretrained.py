"""What `save_pretrained` writes: into a run, back into the live model, and out as the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import unbroken
from tests.adapters.pretrained_model import Tiny, Tokenizer
from tests.cli.command import unbroken as command
from unbroken.adapters.pretrained.layout import Layout, WeightFile, of_state_dict, read, write
from unbroken.capture.source import policy_of_loaded
from unbroken.capture.weights import not_finite
from unbroken.errors import ConfigError, CorruptObject
from unbroken.pretrained import Pretrained
from unbroken.repo.repository import Repository
from unbroken.state.diff import compare
from unbroken.state.graft import Difference, plan
from unbroken.state.snapshot import Snapshot
from unbroken.state.walk import capture

TOP = Path(__file__).parent.parent.parent
SCRIPT = Path(__file__).parent / "pretrained_script.py"


def train(root: Path, *words: object, expect: int = 0) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(root), *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TOP)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == expect, done.stderr
    return done.stdout.split()


def final_state(root: Path) -> Snapshot:
    repository = Repository.open(root, root.name)
    return repository.load(repository.commits()[0])


def tiny(seed: int, **options: Any) -> Tiny:
    torch.manual_seed(seed)
    return Tiny(**options)


def taken(holder: Pretrained) -> Snapshot:
    return capture({"policy": holder}, policy_of_loaded())


def answers(saved: Snapshot, model: nn.Module, *more: Any) -> list[Difference]:
    """Return what a plan says; it must not touch the model."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    holder = Pretrained(model, *more)  # type: ignore[arg-type]
    found = plan(saved, {"policy": holder}, policy_of_loaded()).differences
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    return found


def files_of(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def saved_run(root: Path, **objects: object) -> Path:
    run = unbroken.Run(root, quiet=True)
    run.track(**objects)
    for _ in run.steps(1):
        pass
    return root


def test_a_killed_training_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    undisturbed = train(tmp_path / "a" / "run")
    train(tmp_path / "b" / "run", "--kill-at", 10, expect=-signal.SIGKILL)
    subprocess.run(["cp", "-r", str(tmp_path / "b"), str(tmp_path / "c")], check=True)
    resumed = train(tmp_path / "b" / "run", "--seed", 2)
    cold = train(tmp_path / "c" / "run", "--seed", 2, "--cold")
    assert (undisturbed[0], resumed[0], cold[0]) == ("0", "8", "8")
    assert undisturbed[1] == resumed[1] != cold[1]
    assert compare(final_state(tmp_path / "a" / "run"), final_state(tmp_path / "b" / "run")) == []


@pytest.mark.parametrize("shards", [1, 2])
def test_weights_come_back_in_place_and_stay_tied(shards: int) -> None:
    model, twin = tiny(1, shards=shards), tiny(2, shards=shards)
    own = list(twin.parameters())
    saved = taken(Pretrained(model))
    graft = plan(saved, {"policy": (holder := Pretrained(twin))}, policy_of_loaded())
    assert graft.differences == []
    graft.apply()
    assert [a is b for a, b in zip(twin.parameters(), own, strict=True)] == [True] * len(own)
    assert twin.head.weight is twin.embed.weight
    assert all(torch.equal(model.state_dict()[n], t) for n, t in twin.state_dict().items())
    assert compare(saved, taken(holder)) == []


def test_a_snapshot_shares_nothing_with_what_goes_on() -> None:
    model = tiny(1)
    saved, before = taken(Pretrained(model)), model.embed.weight.detach().clone()
    with torch.no_grad():
        model.embed.weight.zero_()
    plan(saved, {"policy": Pretrained(model)}, policy_of_loaded()).apply()
    assert torch.equal(model.embed.weight, before)


def test_another_architecture_is_refused_by_name() -> None:
    saved = taken(Pretrained(tiny(1)))
    wider = [str(d) for d in answers(saved, tiny(2, width=8)) if d.level == "error"]
    assert any("float32[50, 16] was saved, and the program has float32[50, 8] here" in line for line in wider)
    deeper = tiny(2)
    deeper.extra = nn.Linear(2, 2)
    lines = [str(d) for d in answers(saved, deeper) if d.level == "error"]
    assert lines == ["policy/value: extra.bias, extra.weight of the program's model was not saved."]
    lines = [str(d) for d in answers(taken(Pretrained(deeper)), tiny(2)) if d.level == "error"]
    assert lines == [
        "policy/value: extra.bias, extra.weight was saved, and the program's model has no such tensor."
    ]


def test_other_configurations_are_named_and_the_programs_stay(tmp_path: Path) -> None:
    root = tmp_path / "run"
    saved_run(root, policy=Pretrained(tiny(1), Tokenizer()))
    hotter = Pretrained(tiny(1, temperature=2.0), Tokenizer())
    run = unbroken.Run(root, quiet=True)
    run.track(policy=hotter)
    for _ in run.steps(2):
        pass
    assert run.report is not None
    assert any("generation_config.json" in line and "stay" in line for line in run.report.changes), run.report
    assert b"2.0" in hotter.files["generation_config.json"]


class Rewritten(Tiny):
    """Saves what `rewrite` makes of its tensors."""

    rewrite: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]

    def save_pretrained(self, save_directory: str) -> None:
        own = {name: tensor.detach().clone() for name, tensor in self.state_dict().items()}
        save_file(self.rewrite(own), Path(save_directory) / "model.safetensors")


def rewritten(rewrite: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Rewritten:
    torch.manual_seed(1)
    model = Rewritten()
    model.rewrite = rewrite
    return model


def test_a_buffer_that_is_left_out_is_named_and_tied_weights_are_not(tmp_path: Path) -> None:
    def forget(own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: own[name] for name in own if "running" not in name and name != "head.weight"}

    assert taken(Pretrained(tiny(1))).notes == []
    saved = taken(Pretrained(rewritten(forget)))
    (note,) = saved.notes
    assert note.kind == "not captured"
    assert "norm.running_mean" in note.detail and "mixer.weight" not in note.detail
    assert [d for d in answers(saved, rewritten(forget)) if d.level == "error"] == []


@pytest.mark.parametrize(
    ("rewrite", "says"),
    [
        (lambda own: {**own, "mixer.weight": own["mixer.weight"].half()}, r"mixer.weight as float16.* bfloat16\["),
        (lambda own: {**own, "mixer.bias": own["mixer.bias"][:4].clone()}, r"bfloat16\[4\], .* bfloat16\[16\]"),
        (lambda own: {f"base.{name}": tensor for name, tensor in own.items()}, "base.embed.weight.*none of this name"),
        (lambda own: {name: own[name] for name in own if "mixer" not in name}, "leaves out mixer.bias, mixer.weight"),
        (lambda own: {**own, "mixer.bias": own["mixer.bias"] + 1}, "other values of mixer.bias"),
    ],
)  # fmt: skip
def test_what_could_never_be_restored_is_refused_at_the_start(
    tmp_path: Path, rewrite: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        saved_run(tmp_path / "run", policy=Pretrained(rewritten(rewrite)))
    assert not list(tmp_path.rglob("commits/*.json"))


class Writer:
    """A part that only does one thing to the directory."""

    def __init__(self, do: Callable[[Path], object]) -> None:
        self.do = do

    def save_pretrained(self, save_directory: str) -> None:
        self.do(Path(save_directory))


@pytest.mark.parametrize(
    ("do", "says"),
    [
        (lambda folder: (folder / "a\\b.json").write_text("{}"), "backslash"),
        (lambda folder: (folder / os.fsdecode(b"\xff.txt")).write_text("x"), "xff.txt"),
        (lambda folder: (folder / "link.txt").symlink_to(__file__), "link.txt a link"),
        (lambda folder: (folder / "gone.txt").symlink_to("nowhere"), "gone.txt a link"),
        (lambda folder: (folder / "sub").symlink_to(TOP), "sub a link"),
        (lambda folder: os.mkfifo(folder / "pipe"), "pipe, which is no plain file"),
        (
            lambda folder: save_file({"w": torch.zeros(1)}, folder / "w.safetensors"),
            "none of the parts is a torch",
        ),
    ],
)
def test_what_could_not_be_written_again_is_refused_at_the_start(
    tmp_path: Path, do: Callable[[Path], object], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        saved_run(tmp_path / "run", policy=Pretrained(Writer(do)))
    assert not list(tmp_path.rglob("commits/*.json"))


def test_nan_is_found() -> None:
    model = tiny(1)
    assert not_finite(taken(Pretrained(model))) == {}
    with torch.no_grad():
        model.mixer.weight[0, 0] = float("nan")
    assert not_finite(taken(Pretrained(model))) == {"policy/value/weights.mixer.weight": "policy_weights"}


def test_unchanged_tensors_cost_nothing_in_the_next_checkpoint(tmp_path: Path) -> None:
    model = tiny(1, words=20_000)
    run = unbroken.Run(tmp_path / "run", every=1, quiet=True)
    run.track(policy=Pretrained(model))
    sizes: list[int] = []
    run.scratch(sizes)
    for step in run.steps(3):
        run.wait()
        sizes.append(sum(path.stat().st_size for path in (tmp_path / "run").rglob("*.pack")))
        with torch.no_grad():
            model.mixer.weight += step
    assert sizes[0] > model.embed.weight.nbytes // 2  # packs are compressed
    assert sizes[2] - sizes[0] < model.embed.weight.nbytes // 10


@pytest.mark.parametrize(
    "parts",
    [
        lambda: (),
        lambda: (nn.Linear(2, 2),),
        lambda: (Tiny,),
        lambda: (tiny(1), tiny(2)),
    ],
)
def test_what_cannot_be_tracked(parts: Any) -> None:
    with pytest.raises(ConfigError):
        Pretrained(*parts())


@pytest.mark.parametrize("shards", [1, 3])
def test_an_export_is_what_save_pretrained_writes(tmp_path: Path, shards: int) -> None:
    model, tokenizer = tiny(1, shards=shards), Tokenizer()
    saved_run(tmp_path / "runs", policy=Pretrained(model, tokenizer))
    expected = tmp_path / "expected"
    expected.mkdir()
    for part in (model, tokenizer):
        part.save_pretrained(str(expected))
    answer = command("export", "runs", "--to", "hf-dir", "out", cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert files_of(tmp_path / "out") == files_of(expected)
    assert "from_pretrained('out')" in answer.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["expected", "out", "runs"]


def test_any_module_is_exported_under_its_state_dict_names(tmp_path: Path) -> None:
    model = tiny(1)
    saved_run(tmp_path / "runs", policy=model)
    answer = command("export", "runs", "--to", "hf-dir", "out", "--json", cwd=tmp_path)
    assert answer.code == 0, answer.err
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_file(expected, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert files_of(tmp_path / "out") == {"model.safetensors": (tmp_path / "model.safetensors").read_bytes()}
    assert answer.json["entries"] == len(expected)

    answer = command("export", "runs", "--to", "hf-dir", "out", "--shard-size", "2KB", cwd=tmp_path)
    assert answer.code == 2 and "exists" in answer.err
    answer = command(
        "export", "runs", "--to", "hf-dir", "out", "--shard-size", "2KB", "--force", cwd=tmp_path
    )
    assert answer.code == 0, answer.err
    shards = sorted((tmp_path / "out").glob("*.safetensors"))
    assert shards[0].name == f"model-00001-of-{len(shards):05d}.safetensors"
    found = {name: tensor for shard in shards for name, tensor in load_file(shard).items()}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    again = read(tmp_path / "out")
    assert again.files.keys() == {"model.safetensors.index.json"}


def test_several_models_have_a_directory_each(tmp_path: Path) -> None:
    saved_run(tmp_path / "runs", actor=Pretrained(tiny(1)), critic=Pretrained(tiny(2)))
    assert command("export", "runs", "--to", "hf-dir", "out", cwd=tmp_path).code == 0
    expected = tmp_path / "expected"
    expected.mkdir()
    tiny(2).save_pretrained(str(expected))
    assert files_of(tmp_path / "out" / "critic") == files_of(expected)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["actor", "critic"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--to", "hf-dir"), "unbroken export runs --to hf-dir DIR"),
        (("out", "--to", "w.pt"), "Leave out out"),
        (("out", "--to", "hf-dir", "--shard-size", "much"), "no size"),
        (("out", "--to", "hf-dir", "--component", "training_state"), "holds no model"),
    ],
)
def test_what_cannot_be_exported(trained_run: Path, words: tuple[str, ...], says: str) -> None:
    answer = command("export", "runs", *words, cwd=trained_run)
    assert answer.code == 2
    assert says in answer.err
    assert sorted(path.name for path in trained_run.iterdir()) == ["runs"]


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    saved_run(folder / "runs", numbers=[1, 2], policy=Pretrained(tiny(1)))
    return folder


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "", "..\\x"])
def test_a_forged_name_does_not_lead_out_of_the_directory(tmp_path: Path, name: str) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    with pytest.raises(CorruptObject, match="leads out"):
        write(Layout(files={name: b"x"}), inside)
    with pytest.raises(CorruptObject, match="leads out"):
        write(Layout({"t": torch.zeros(1)}, {name: WeightFile(("t",), {})}), inside)
    assert [path.name for path in tmp_path.rglob("*")] == ["in"]


def test_a_directory_that_was_read_is_written_again_byte_for_byte(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.arange(10.0 * i).to(torch.float16) for i in range(5)}
    for name, shard in (("a", 10**9), ("b", 50)):
        for folder in (first := tmp_path / f"{name}1", second := tmp_path / f"{name}2"):
            folder.mkdir()
        write(of_state_dict(tensors, shard_bytes=shard), first)
        write(read(first), second)
        assert files_of(first) == files_of(second)
        assert len(list(first.glob("*.safetensors"))) == (1 if name == "a" else 4)


def test_a_name_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file({"w": torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(ConfigError, match="'w' a second time"):
        read(tmp_path)
