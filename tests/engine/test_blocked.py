"""Something else than a file in an object's place: a start goes on as far as it can, and the doctor says the same."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests.cli.command import unbroken
from tests.engine.children import die, in_child
from tests.engine.training import Training, engine_of, train, undisturbed
from unbroken.types import Step

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Nothing here is about power loss, and a disk would wait for every sync."""
FORMS: dict[str, Callable[[Path], None]] = {
    "link": lambda path: path.symlink_to("/etc/passwd"),
    "pipe": lambda path: os.mkfifo(path, 0o600),
    "directory": lambda path: path.mkdir(),
}
OBJECTS = {
    "newest record": ("commits/*4.json", 20),
    "older record": ("commits/*3.json", 30),
    "newest manifest": ("steps/*30-*/manifest.json", 20),
    "newest document": ("steps/*30-*/policy_weights.json", 20),
    "older document": ("steps/*20-*/policy_weights.json", 30),
    "newest index": ("packs/*/*.idx", 30),
    "birth": ("births/*", 30),
    "history": ("history.jsonl", 30),
    "begun save": ("pending.json", 30),
    "lease": ("lease.json", 30),
    "format": ("format.json", 30),
}
"""What is blocked, and the step from which a start goes on then."""


@pytest.fixture(scope="module")
def killed() -> Generator[Path, None, None]:
    """A run that was killed in a save, with checkpoints at 0, 10, 20 and 30."""
    root = Path(tempfile.mkdtemp(dir=MEMORY)) / "runs"

    def body() -> None:
        training = Training()
        engine = engine_of(training, root)
        engine.resume()
        train(engine, training, start=0, until=37)
        engine._opened().mark_pending(Step(37), "it was time", segment=0)
        die()

    try:
        assert in_child(body) == -signal.SIGKILL
        yield root
    finally:
        shutil.rmtree(root.parent)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", OBJECTS)
def test_a_start_goes_on_and_the_doctor_says_so(killed: Path, tmp_path: Path, kind: str, form: str) -> None:
    root = killed.with_name("copy")
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(killed, root)
    pattern, step = OBJECTS[kind]
    path = max((root / "run").glob(pattern), key=lambda found: found.stat().st_mtime_ns)
    path.unlink()
    FORMS[form](path)

    told = unbroken("doctor", root, "--json", cwd=tmp_path).json
    first = next(attempt for attempt in told["plan"] if attempt["first"])
    training = Training()
    with engine_of(training, root) as engine:
        report = engine.resume()
        assert (report.step, report.restored) == (step, True)
        assert report.commit is not None
        assert (first["tier"], first["sequence"]) == (report.tier.value, report.commit.sequence)
        assert told["fault"] == {"kind": report.fault.kind.value, "detail": report.fault.detail}
        if kind in ("newest record", "older record", "newest manifest", "newest index", "format"):
            assert any(path.name in reason for reason in report.reasons), "nothing is passed over in silence"
        train(engine, training, start=report.step, until=50)
        engine.save(50, reason="end of training", position="end")
    assert training.digest() == undisturbed(50)
    assert any("start" in line for line in unbroken("history", root, cwd=tmp_path).out.splitlines()[-3:])
