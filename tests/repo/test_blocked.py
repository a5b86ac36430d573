"""A link, a pipe, a directory, a socket or an unreadable file in the place of an object is damage of that object alone."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from unbroken.errors import CorruptObject, ObjectBlocked, StoreDenied
from unbroken.format import layout
from unbroken.format.records import HistoryRecord
from unbroken.repo.process import current
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.state.nodes import Dict
from unbroken.state.snapshot import Component, Snapshot
from unbroken.types import Sequence, Step

from .states import meta, noise, same, snapshot

NOBODY = 65534
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Nothing here is about power loss, and a disk would wait for every sync."""
EVENT = HistoryRecord(job="run", pid=1, process_start="1", host="h", boot_id="b", time=1.0, event="start")


def _as_a_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def _as_a_directory(path: Path) -> None:
    path.mkdir(mode=0o700)


def _as_a_full_directory(path: Path) -> None:
    path.mkdir(mode=0o700)
    (path / "somebody's").write_bytes(b"keep me")


def _as_a_pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


def _as_a_socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)


def _as_a_file_that_may_not_be_read(path: Path) -> None:
    path.write_bytes(b"whatever")
    path.chmod(0)


FORMS: dict[str, Callable[[Path], None]] = {
    "link": _as_a_link,
    "pipe": _as_a_pipe,
    "directory": _as_a_directory,
    "socket": _as_a_socket,
    "unreadable": _as_a_file_that_may_not_be_read,
}
OBJECTS = {
    "format": "format.json",
    "newest record": "commits/*4.json",
    "older record": "commits/*3.json",
    "claim": "epochs/*1.json",
    "start": "epochs/*4.start.json",
    "newest manifest": "steps/*3-*/manifest.json",
    "newest meta": "steps/*3-*/meta.json",
    "newest document": "steps/*3-*/counters.json",
    "older document": "steps/*2-*/policy_weights.json",
    "newest pack": "packs/*/*e4.pack",
    "newest index": "packs/*/*e4.idx",
    "older pack": "packs/*/*e3.pack",
    "older index": "packs/*/*e3.idx",
    "birth": "births/*",
    "history": "history.jsonl",
    "pending": "pending.json",
    "latest": "latest.txt",
    "lease": "lease.json",
    "workers": "workers.json",
    "low water": layout.LOW_WATER,
}
# They share nothing: a pack that two need would be compacted, and so be of the newest epoch.
STATES = {step: snapshot(noise(3000, step), noise(2000, 100 + step), step=step) for step in range(6)}


def train(repository: Repository, step: int) -> None:
    """What a start does to a run, and one save."""
    with repository.writer() as writer:
        birth = writer.write_birth(Snapshot(components={"a": Component(name="a", roots={"x": Dict(v={})})}))
        writer.append_history(EVENT)
        writer.record_workers([current()])
        writer.mark_pending(Step(step), "test")
        writer.write(STATES[step], msgspec.structs.replace(meta(step), birth=birth))
        writer.mark_pending(Step(step + 1), "test")
        writer.retain(plan_retention(repository.commits(), keep_last=3))


@pytest.fixture(scope="module")
def trained() -> Generator[Path, None, None]:
    """A run with three checkpoints, each of its own process, and everything else that a run may hold."""
    place = Path(tempfile.mkdtemp(dir=MEMORY))
    try:
        for step in range(4):
            train(Repository.open(place, "run", create=True), step)
        yield place / "run"
    finally:
        shutil.rmtree(place)


@contextmanager
def _nobody(place: Path) -> Generator[None, None, None]:
    """Root reads everything: be somebody else, who owns the run."""
    if os.geteuid() != 0:
        yield
        return
    place.chmod(0o711)
    for path in (place, *place.rglob("*")):
        os.lchown(path, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Generator[Path, None, None]:
    place = Path(tempfile.mkdtemp(dir=MEMORY))
    shutil.copytree(trained, place / "run")
    try:
        yield place / "run"
    finally:
        shutil.rmtree(place)


def block(run: Path, kind: str, form: Callable[[Path], None]) -> Path:
    """Put something else in the place of an object."""
    if kind == "lease":  # only a killed process leaves one
        (run / OBJECTS[kind]).touch()
    path = max(run.glob(OBJECTS[kind]))
    path.unlink()
    form(path)
    return path


def whole(repository: Repository) -> list[int]:
    """Return the steps of the checkpoints that can be loaded, newest first. Each holds what was saved."""
    found: list[int] = []
    for commit in repository.commits():
        try:
            state = repository.load(commit)
        except CorruptObject:
            assert repository.verify(commit) != []
            continue
        assert same(state, STATES[commit.step])
        found.append(commit.step)
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", OBJECTS)
def test_what_blocks_one_object_costs_at_most_its_checkpoint(run: Path, kind: str, form: str) -> None:
    path = block(run, kind, FORMS[form])
    with _nobody(run.parent):
        _costs_at_most_its_checkpoint(run, kind, form, path)


def _costs_at_most_its_checkpoint(run: Path, kind: str, form: str, path: Path) -> None:
    repository = Repository.open(run.parent, "run")
    left = whole(repository)
    lost = {2} if kind.startswith("older") else {3} if kind.startswith("newest") else set[int]()
    if kind.endswith("index"):
        lost = set()  # its pack says the same
    assert left == [step for step in (3, 2, 1) if step not in lost]
    key = str(path.relative_to(run))
    if kind in ("format", "newest record", "older record", "start", "newest index", "older index"):
        assert key in {fault.key for fault in repository.broken()}
    if kind == "history" and form == "unreadable":
        # Its lines are somebody's to save: it is neither replaced nor left out in silence.
        with pytest.raises(StoreDenied, match=r"history\.jsonl"):
            train(Repository.open(run.parent, "run", create=True), 4)
        return
    train(Repository.open(run.parent, "run", create=True), 4)
    assert whole(Repository.open(run.parent, "run"))[:2] == [4, left[0]]
    train(Repository.open(run.parent, "run", create=True), 5)
    assert whole(Repository.open(run.parent, "run"))[:2] == [5, 4]


@pytest.mark.parametrize(
    "kind", ["newest record", "older record", "newest manifest", "newest index", "start"]
)
def test_a_directory_with_something_in_it_stays_and_costs_no_more(run: Path, kind: str) -> None:
    path = block(run, kind, _as_a_full_directory)
    with _nobody(run.parent):
        _costs_at_most_its_checkpoint(run, kind, "directory", path)
    assert (path / "somebody's").read_bytes() == b"keep me"


@pytest.mark.parametrize("kind", ["pending", "history", "workers", "lease"])
def test_a_full_directory_in_the_place_of_what_a_save_writes_is_named(run: Path, kind: str) -> None:
    path = block(run, kind, _as_a_full_directory)
    with pytest.raises(ObjectBlocked, match="is a directory") as caught:
        train(Repository.open(run.parent, "run", create=True), 4)
    assert str(path) in str(caught.value)
    assert caught.value.hint == "Move it away."
    assert whole(Repository.open(run.parent, "run"))[-3:] == [3, 2, 1]


def test_a_record_in_whose_place_a_directory_stands_leaves_its_number_taken(run: Path) -> None:
    path = block(run, "newest record", _as_a_directory)
    number = layout.commit_sequence(f"commits/{path.name}")
    assert number is not None
    train(Repository.open(run.parent, "run"), 4)
    assert Repository.open(run.parent, "run").commits()[0].sequence == Sequence(number + 1)


@pytest.mark.parametrize("damage", ["zeros", "cut", "empty", "of another pack"])
def test_an_index_that_is_lost_is_read_from_its_pack_and_told(run: Path, damage: str) -> None:
    index = next(run.glob(OBJECTS["newest index"]))
    data = index.read_bytes()
    other = next(run.glob(OBJECTS["older index"])).read_bytes()
    index.write_bytes(
        {"zeros": bytes(len(data)), "cut": data[:20], "empty": b"", "of another pack": other}[damage]
    )
    repository = Repository.open(run.parent, "run")
    assert whole(repository) == [3, 2, 1]
    assert all(repository.verify(commit) == [] for commit in repository.commits())
    (fault,) = repository.broken()
    assert fault.key == str(index.relative_to(run))
    assert "was read from the pack itself" in fault.problem
    train(Repository.open(run.parent, "run"), 4)
    assert whole(Repository.open(run.parent, "run")) == [4, 3, 2]


def test_an_index_and_a_pack_that_are_both_lost_cost_their_checkpoint(run: Path) -> None:
    index = next(run.glob(OBJECTS["newest index"]))
    index.write_bytes(bytes(100))
    pack = index.with_suffix(".pack")
    pack.write_bytes(pack.read_bytes()[:-1])
    repository = Repository.open(run.parent, "run")
    assert whole(repository) == [2, 1]
    assert {fault.key for fault in repository.broken()} == {str(index.relative_to(run))}
