"""du, prune and copy, on a run that a real engine has written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import unbroken
from tests.repo.states import meta, noise, snapshot
from tests.store.test_real_conditions import mounted
from unbroken.format import layout
from unbroken.format.records import Lease
from unbroken.repo.process import current
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.repo.seal import seal
from unbroken.store.local import LocalStore
from unbroken.types import Epoch


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run `runs/tiny/tiny` that may be changed."""
    shutil.copytree(trained / "runs", tmp_path / "runs")
    return tmp_path


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def bytes_in(path: Path) -> int:
    return sum(len(content) for content in files(path).values())


def steps(root: Path) -> list[int]:
    return [commit.step for commit in Repository.open(root, "tiny").commits()]


class TestDu:
    def test_a_person_reads_checkpoints_components_and_totals(self, trained: Path) -> None:
        answer = unbroken("du", "runs", cwd=trained)
        assert answer.code == 0
        lines = answer.out.splitlines()
        assert lines[0] == "runs/tiny/tiny"
        assert lines[1].split() == ["step", "taken", "alone", "shared", "uncompressed", "ratio"]
        assert [line.split()[0] for line in lines[2:5]] == ["40", "30", "20"]
        assert any(line.startswith("training_state ") for line in lines)
        assert " on disk: " in lines[-1]

    def test_a_machine_reads_bytes(self, trained: Path) -> None:
        (run,) = unbroken("du", "runs/tiny", "--json", cwd=trained).json["runs"]
        assert run["on_disk"] == bytes_in(trained / "runs/tiny/tiny") == run["live"] + run["dead"]
        newest = run["checkpoints"][0]
        assert newest["step"] == 40
        state = newest["components"]["training_state"]
        assert 24_000 < state["uncompressed"] < 25_000, "the array and its document"
        assert newest["alone"] >= sum(part["alone"] for part in newest["components"].values())

    def test_it_changes_nothing_and_needs_no_lock(self, folder: Path) -> None:
        with Repository.open(folder / "runs/tiny", "tiny").writer():
            before = files(folder)
            assert unbroken("du", "runs", cwd=folder).code == 0
            assert files(folder) == before

    def test_nothing_there(self, trained: Path) -> None:
        answer = unbroken("du", "empty", cwd=trained)
        assert answer.code == 2
        assert "holds no runs" in answer.err


class TestPrune:
    def test_a_dry_run_changes_nothing_and_says_what_would_go(self, folder: Path) -> None:
        before = files(folder)
        answer = unbroken("prune", "runs", "--keep-last", 1, "--dry-run", cwd=folder)
        assert answer.code == 0
        assert files(folder) == before
        words = [line.split() for line in answer.out.splitlines()]
        assert [line[0] for line in words if "goes" in line] == ["30", "20"]
        assert [line[0] for line in words if "kept" in line] == ["40"]
        assert "delete commit records" in answer.out

    def test_what_the_dry_run_said_happens(self, folder: Path) -> None:
        run = folder / "runs/tiny/tiny"
        plan = unbroken("prune", "runs", "--keep-last", 1, "--dry-run", "--json", cwd=folder).json
        before = bytes_in(run)
        done = unbroken("prune", "runs", "--keep-last", 1, "--json", cwd=folder).json
        assert done["dropped"] == plan["dropped"] == [30, 20]
        assert done["deleted"] == plan["deleted"]
        assert done["freed"] == pytest.approx(before - bytes_in(run), abs=1000)
        assert done["freed"] == pytest.approx(plan["freed"], abs=2000), "but for records of the new epoch"
        assert steps(folder / "runs/tiny") == [40]
        assert unbroken("verify", "runs", cwd=folder).code == 0

    def test_without_a_number_every_checkpoint_stays(self, folder: Path) -> None:
        assert unbroken("prune", "runs", cwd=folder).code == 0
        assert steps(folder / "runs/tiny") == [40, 30, 20]

    def test_it_is_refused_while_a_training_runs(self, folder: Path) -> None:
        script = (
            "import sys, time\nfrom unbroken.repo.repository import Repository\n"
            "writer = Repository.open(sys.argv[1], 'tiny').writer()\nprint('ready', flush=True)\nsys.stdin.read()"
        )
        root = folder / "runs/tiny"
        with subprocess.Popen(
            [sys.executable, "-c", script, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as training:
            assert training.stdout is not None
            assert training.stdout.readline() == "ready\n"
            before = files(folder)
            answer = unbroken("prune", "runs", "--keep-last", 1, cwd=folder)
            assert answer.code == 2
            assert f"in use by process {training.pid}" in answer.err
            planned = unbroken("prune", "runs", "--keep-last", 1, "--dry-run", cwd=folder)
            assert planned.code == 0
            assert f"in use by process {training.pid}" in planned.out
            assert files(folder) == before
            training.kill()
        assert unbroken("prune", "runs", "--keep-last", 1, cwd=folder).code == 0

    def test_what_a_running_training_may_be_saving_is_spared_and_named(self, folder: Path) -> None:
        root = folder / "runs/tiny"
        with Repository.open(root, "tiny").writer() as writer:
            name = f"{'ab' * 6}e{writer.epoch}"
            path = root / "tiny" / layout.pack(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"on its way")
            answer = unbroken("prune", "runs", "--dry-run", cwd=folder)
        assert f"the process of epoch {writer.epoch} may still be saving it" in answer.out
        again = unbroken("prune", "runs", "--dry-run", "--json", cwd=folder).json
        assert layout.pack(name) in again["deleted"], "that process has ended"

    def test_a_run_that_was_held_elsewhere_is_not_taken_unasked(self, folder: Path) -> None:
        here = current()
        lease = Lease(
            job="tiny", pid=7, process_start="1", host="node-17", boot_id=here.boot_id, epoch=Epoch(1)
        )
        (folder / "runs/tiny/tiny/lease.json").write_bytes(seal(lease))
        answer = unbroken("prune", "runs", cwd=folder)
        assert answer.code == 2
        assert "process 7 on node-17" in answer.err
        assert "--take-over" in answer.err
        assert unbroken("prune", "runs", "--take-over", cwd=folder).code == 0

    def test_one_of_several_runs_is_named(self, folder: Path) -> None:
        shutil.copytree(folder / "runs/tiny/tiny", folder / "runs/tiny/other")
        assert unbroken("prune", "runs/tiny", cwd=folder).code == 2
        assert unbroken("prune", "runs/tiny", "--job", "tiny", "--keep-last", 1, cwd=folder).code == 0
        assert steps(folder / "runs/tiny") == [40]
        assert len(Repository.open(folder / "runs/tiny", "other").commits()) == 3
        assert "no run" in unbroken("prune", "runs/tiny", "--job", "third", cwd=folder).err

    def test_a_damaged_blob_is_named_and_the_status_says_so(self, folder: Path) -> None:
        unbroken("prune", "runs", "--keep-last", 1, cwd=folder)
        answer = unbroken("prune", "runs", "--json", cwd=folder)
        assert (answer.code, answer.json["damaged"]) == (0, [])


def test_prune_on_a_full_disk_leaves_all_as_it_was_and_says_how_much_must_be_free(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=1m", "unbroken-test") as disk:
        repository = Repository.open(disk, "job", create=True)
        with repository.writer() as writer:
            for step in (1, 2):
                writer.write(snapshot(noise(100_000, step), noise(300_000, 9), step=step), meta(step))
            writer.retain(plan_retention(repository.commits(), keep_last=1))
        room = os.statvfs(disk)
        (disk / "of somebody else").write_bytes(bytes(room.f_bavail * room.f_frsize - 200_000))
        before = files(disk / "job/packs")
        answer = unbroken("prune", disk, cwd=tmp_path)
        assert answer.code == 1
        assert re.search(r"to rewrite the next, 29\d\.\d KiB must be free first", answer.out)
        assert files(disk / "job/packs") == before
        (disk / "of somebody else").unlink()
        answer = unbroken("prune", disk, cwd=tmp_path)
        assert answer.code == 0
        assert bytes_in(disk / "job/packs") < 410_000
        assert unbroken("verify", disk, cwd=tmp_path).code == 0


class TestCopy:
    def test_the_newest_goes_without_a_word(self, trained: Path, tmp_path: Path) -> None:
        answer = unbroken("copy", "runs", tmp_path / "to", cwd=trained)
        assert answer.code == 0
        assert steps(tmp_path / "to") == [40]
        assert str(tmp_path / "to" / "tiny") in answer.out
        assert unbroken("diff", "runs", tmp_path / "to", cwd=trained).code == 0, "equal states"

    def test_all_of_them_and_once_only(self, trained: Path, tmp_path: Path) -> None:
        done = unbroken("copy", "runs", tmp_path / "to", "--all", "--json", cwd=trained).json
        assert [one["source"]["step"] for one in done["checkpoints"]] == [20, 30, 40]
        assert steps(tmp_path / "to") == [40, 30, 20]
        again = unbroken("copy", "runs", tmp_path / "to", "--all", cwd=trained)
        assert again.out.count("was there") == 3
        assert steps(tmp_path / "to") == [40, 30, 20]

    @pytest.mark.parametrize(
        "words", [("runs", "--step", "30"), ("runs@30",), ("runs", "--job", "tiny", "--step", "30")]
    )
    def test_one_step(self, trained: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
        assert unbroken("copy", words[0], tmp_path / "to", *words[1:], cwd=trained).code == 0
        assert steps(tmp_path / "to") == [30]

    @pytest.mark.parametrize(
        ("words", "code", "copied"), [((), 0, [9]), (("--step", "1"), 2, []), (("--all",), 2, [])]
    )
    def test_what_a_training_deletes_meanwhile_is_no_damage(
        self,
        words: tuple[str, ...],
        code: int,
        copied: list[int],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        run = Repository.open(tmp_path / "run", "tiny", create=True)
        with run.writer() as writer:
            for step in (1, 2):
                writer.write(snapshot(step=step), meta(step))

            def get(store: LocalStore, key: str) -> bytes:
                if key.endswith(layout.MANIFEST):
                    monkeypatch.undo()
                    writer.write(snapshot(step=9), meta(9))
                    writer.retain(plan_retention(run.commits(), keep_last=1))
                return plain(store, key)

            plain = LocalStore.get
            monkeypatch.setattr(LocalStore, "get", get)
            answer = unbroken("copy", tmp_path / "run", tmp_path / "to", *words, cwd=tmp_path)
        assert answer.code == code, answer.err
        assert ("has deleted" in answer.err) == (code == 2)
        assert steps(tmp_path / "to") == copied

    def test_a_training_goes_on_in_the_copy(self, trained: Path, tmp_path: Path) -> None:
        unbroken("copy", "runs", tmp_path / "to", "--all", cwd=trained)
        assert unbroken("verify", tmp_path / "to", cwd=trained).code == 0
        with Repository.open(tmp_path / "to", "tiny").writer() as writer:
            assert writer.epoch == 2

    def test_a_target_in_use_and_the_source_itself_are_refused(self, trained: Path, tmp_path: Path) -> None:
        with Repository.open(tmp_path / "to", "tiny", create=True).writer():
            answer = unbroken("copy", "runs", tmp_path / "to", cwd=trained)
        assert answer.code == 2
        assert "in use" in answer.err
        assert "source itself" in unbroken("copy", "runs", "runs/tiny", cwd=trained).err
        assert "--all" in unbroken("copy", "runs@30", tmp_path / "to", "--all", cwd=trained).err
        assert os.listdir(trained / "runs") == ["tiny"]
