"""What is left behind is found and named, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proving.scripts import write_script
from tests.proving.test_proof import DAEMON
from tests.repo.states import meta, snapshot
from unbroken.format import layout
from unbroken.proving.leftovers import left_in, not_excused
from unbroken.proving.proof import prove
from unbroken.repo.repository import Repository
from unbroken.types import Step


def test_each_thing_that_lies_in_a_run_without_a_use_is_named(tmp_path: Path) -> None:
    repository = Repository.open(tmp_path, "job", create=True)
    with repository.writer() as writer:
        writer.write(snapshot(), meta(1))
    assert left_in(tmp_path) == ()

    writer = repository.writer()
    writer.mark_pending(Step(7), "schedule")
    orphan = layout.pack("0123456789abe1")
    repository.store.put(orphan, b"no index")
    (tmp_path / "job" / "steps" / ".tmp-00").touch()
    left = left_in(tmp_path)
    assert left[:3] == (
        "job: temporary file steps/.tmp-00",
        f"job: object without a checkpoint {orphan}",
        "job: pending record of step 7",
    )
    assert left[3].startswith("job: lease of process ")
    assert len(left) == 4
    writer.close()


def test_what_the_script_leaves_by_itself_is_excused() -> None:
    assert not_excused({"b", "a", "own"}, ["own"]) == ("a", "b")


MAPPED = """
import atexit, mmap
path = Path(f"/dev/shm/{name}-{{os.getpid()}}")
path.write_bytes(bytes(4096))
atexit.register(path.unlink)
file = path.open("r+b")
mapped = mmap.mmap(file.fileno(), 4096)
if (root / "tiny").exists():
"""
"""Shared memory that only an end in order removes; what follows is done in the killed run alone."""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs /dev/shm")
def test_a_process_and_shared_memory_that_only_the_killed_run_leaves_fail_the_proof(tmp_path: Path) -> None:
    name = f"proof-{tmp_path.name}-{tmp_path.parent.name}"  # tests look there for ours at the same time
    indented = "\n    ".join(DAEMON.splitlines())
    before = MAPPED.format(name=name) + f"    {indented}"
    try:
        result = prove(write_script(tmp_path, before=before), kills=1, target="trainer", cwd=tmp_path)
        assert all(final.equal for final in result.finals)
        assert (result.verdict, result.equal) == ("left behind", False)
        process, memory = result.left_behind
        assert process.startswith("process ")
        assert "time.sleep(600)" in process
        assert memory.startswith(f"shared memory /dev/shm/{name}-")
    finally:
        for path in Path("/dev/shm").glob(f"{name}-*"):
            path.unlink()
