"""Permissions of a whole run, written by other processes under any umask, and links where files should be."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest

from tests.repo.states import meta, same, snapshot
from unbroken.errors import ConfigError, ObjectBlocked, StoreError, UnbrokenError
from unbroken.repo.modes import modes
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention

NOBODY = 65534


@pytest.fixture
def place() -> Generator[Path, None, None]:
    """A directory that every user may pass through: those of pytest are for its own."""
    folder = Path(tempfile.mkdtemp(prefix="unbroken-modes-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def train(
    root: Path, umask: int, writer: str = "thread", *, user: int | None = None, **variables: str
) -> str:
    """Train in a process of its own; return the step at which it began."""
    script = Path(__file__).with_name("modes_script.py")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("UNBROKEN_")}
    environment = {
        **kept,
        "PYTHONPATH": str(script.parent.parent.parent),
        "HOME": str(root.parent),
        **variables,
    }
    done = subprocess.run(
        [sys.executable, "-B", str(script), str(root), f"{umask:o}", writer, str(user or "")],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def found(root: Path) -> Mapping[int, set[int]]:
    """Return the modes of the files and of the directories that were made, the root's own included."""
    seen: dict[int, set[int]] = {stat.S_IFREG: set(), stat.S_IFDIR: set()}
    for path in (root, *root.rglob("*")):
        mode = path.lstat().st_mode
        seen[stat.S_IFMT(mode)].add(stat.S_IMODE(mode))
    return seen


@pytest.mark.parametrize(("umask", "writer"), [(0o000, "thread"), (0o000, "process"), (0o277, "thread")])
def test_a_whole_run_is_its_owners_alone_under_any_umask(place: Path, umask: int, writer: str) -> None:
    root = place / "made" / "by" / "us"
    assert train(root, umask, writer) == "0"
    assert train(root, umask, writer) == "5"
    assert found(place / "made") == {stat.S_IFREG: {0o600}, stat.S_IFDIR: {0o700}}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_who_takes_rights_from_himself_by_his_umask_can_still_go_on(place: Path) -> None:
    os.chown(place, NOBODY, -1)
    root = place / "run"
    assert train(root, 0o277, user=NOBODY) == "0"
    assert train(root, 0o277, user=NOBODY) == "5"
    assert found(root) == {stat.S_IFREG: {0o600}, stat.S_IFDIR: {0o700}}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("word", "file", "directory"), [("read", 0o640, 0o750), ("write", 0o660, 0o770)])
def test_a_group_gets_what_the_variable_says(place: Path, word: str, file: int, directory: int) -> None:
    root = place / "run"
    assert train(root, 0o077, UNBROKEN_GROUP=word) == "0"
    assert found(root) == {stat.S_IFREG: {file}, stat.S_IFDIR: {directory}}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_member_of_the_group_goes_on_with_the_run(place: Path) -> None:
    os.chown(place, -1, NOBODY)
    place.chmod(0o2775)
    root = place / "run"
    assert train(root, 0o022, UNBROKEN_GROUP="write") == "0"
    assert train(root, 0o022, user=NOBODY, UNBROKEN_GROUP="write") == "5"
    assert train(root, 0o022, UNBROKEN_GROUP="write") == "10"


def test_a_word_that_is_neither_is_told() -> None:
    with pytest.raises(ConfigError, match="neither read nor write"):
        modes({"UNBROKEN_GROUP": "all"})


class TestLinks:
    """Somebody who may write to the run's directory, but not elsewhere, puts links there."""

    @pytest.fixture
    def run(self, tmp_path: Path) -> Path:
        repository = Repository.open(tmp_path / "root", "run", create=True)
        with repository.writer() as writer:
            writer.write(snapshot(step=1), meta(1))
        return tmp_path / "root" / "run"

    def moved(self, path: Path, outside: Path) -> None:
        """Put a link to the same contents, outside of the run, in the place of a file or directory."""
        shutil.move(path, outside)
        path.symlink_to(outside)

    @pytest.mark.parametrize("name", ["steps", "packs", "commits", "epochs", "births"])
    def test_a_directory_that_leads_out_is_not_read(self, run: Path, tmp_path: Path, name: str) -> None:
        if name == "births":
            (run / name).mkdir(exist_ok=True)
        self.moved(run / name, tmp_path / "outside")
        repository = Repository.open(run.parent, "run")
        try:
            commits = repository.commits()
            states = [repository.load(commit) for commit in commits]
        except UnbrokenError:
            return
        assert name in ("epochs", "births") or not states

    @pytest.mark.parametrize("name", ["steps", "packs", "commits", "epochs"])
    def test_nothing_is_written_or_deleted_through_a_link(self, run: Path, tmp_path: Path, name: str) -> None:
        self.moved(run / name, tmp_path / "outside")
        before = {path: path.lstat().st_mtime_ns for path in (tmp_path / "outside").rglob("*")}
        with pytest.raises(UnbrokenError):  # noqa: PT012 - which step is the first to run into it depends on the name
            repository = Repository.open(run.parent, "run")
            with repository.writer() as writer:
                writer.write(snapshot(step=2), meta(2))
                writer.retain(plan_retention(repository.commits(), keep_last=1))
        assert {path: path.lstat().st_mtime_ns for path in (tmp_path / "outside").rglob("*")} == before

    @pytest.mark.parametrize(
        "pattern", ["steps/*/manifest.json", "steps/*/meta.json", "steps/*/counters.json", "packs/*/*.pack"]
    )
    def test_a_file_that_leads_out_is_not_read(self, run: Path, pattern: str) -> None:
        (path,) = run.glob(pattern)
        path.unlink()
        path.symlink_to("/etc/passwd")
        repository = Repository.open(run.parent, "run")
        commit = repository.commits()[0]
        with pytest.raises(UnbrokenError) as raised:
            repository.load(commit)
        assert "root:" not in str(raised.value)

    @pytest.mark.parametrize("name", ["lock", "lease.json", "latest.txt", "pending.json"])
    def test_a_file_beside_them_that_leads_out_is_not_written_to(
        self, run: Path, tmp_path: Path, name: str
    ) -> None:
        outside = tmp_path / "outside"
        outside.write_text("keep me")
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(outside)
        repository = Repository.open(run.parent, "run")
        try:
            with repository.writer() as writer:
                writer.mark_pending(meta(2).step, "test")
                writer.write(snapshot(step=2), meta(2))
        except StoreError as error:
            assert name in str(error)  # noqa: PT017 - some of them are replaced, others refused
        assert outside.read_text() == "keep me"

    def test_a_link_to_the_root_is_a_way_to_name_it(self, run: Path, tmp_path: Path) -> None:
        (tmp_path / "named").symlink_to(run.parent)
        repository = Repository.open(tmp_path / "named", "run")
        with repository.writer() as writer:
            writer.write(snapshot(step=2), meta(2))
        assert [commit.step for commit in Repository.open(run.parent, "run").commits()] == [2, 1]

    def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(self, run: Path) -> None:
        for pattern in ("steps/*/manifest.json", "lock"):
            (path,) = run.glob(pattern)
            path.unlink()
            os.mkfifo(path)
        repository = Repository.open(run.parent, "run")
        with pytest.raises(ObjectBlocked, match="pipe"):
            repository.load(repository.commits()[0])
        with repository.writer() as writer:  # the epoch decides, the lock is a hint
            commit = writer.write(snapshot(step=2), meta(2))
        assert same(repository.load(commit), snapshot(step=2))
