"""J2: a checkpoint that is being written is loaded by nobody, neither here nor from another process, until all of it is there."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.training import Training, engine_of, train
from unbroken.engine.engine import CheckpointEngine
from unbroken.errors import ConfigError
from unbroken.format import layout
from unbroken.state.diff import compare
from unbroken.store.local import LocalStore

READER = """
import json, sys
from pathlib import Path
from tests.engine.training import Training, engine_of
from unbroken.errors import ConfigError
engine = engine_of(Training(), Path(sys.argv[1]))
try:
    engine.load(12)
    twelve = "loaded"
except ConfigError as error:
    twelve = str(error)
document = engine.load().components["training_state"]
print(json.dumps({"latest": engine.latest_step(), "newest": repr(document.roots), "twelve": twelve}))
"""


class SlowStore:
    """Holds the writer before it writes the first object whose key has this in it; everything before it is on the disk."""

    def __init__(self, part: str, patch: pytest.MonkeyPatch) -> None:
        self.part = part
        self.held = threading.Event()
        self.go_on = threading.Event()
        put_all, put_if_absent = LocalStore.put_all, LocalStore.put_if_absent

        def slow_put_all(store: LocalStore, items: Any) -> None:
            def one_by_one() -> Iterator[tuple[str, Any]]:
                for key, content in items:
                    self._pass(key)
                    yield key, content

            put_all(store, one_by_one())

        def slow_put_if_absent(store: LocalStore, key: str, data: Any) -> bool:
            self._pass(key)
            return put_if_absent(store, key, data)

        patch.setattr(LocalStore, "put_all", slow_put_all)
        patch.setattr(LocalStore, "put_if_absent", slow_put_if_absent)

    def _pass(self, key: str) -> None:
        if self.part in key:
            self.held.set()
            assert self.go_on.wait(120)


def elsewhere(root: Path) -> dict[str, Any]:
    """What another process finds."""
    done = subprocess.run(
        [sys.executable, "-c", READER, str(root)],
        cwd=Path(__file__).parents[2],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def found(engine: CheckpointEngine) -> str:
    return repr(engine.load().components["training_state"].roots)


@pytest.mark.parametrize(
    "part", ["policy_weights.json", f"{layout.COMMITS}/"], ids=["half", "all but its record"]
)
def test_until_it_is_committed_the_one_before_is_loaded(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "runs"
    training = Training()
    engine = engine_of(training, root)
    engine.resume()
    train(engine, training, start=0, until=12)
    before = found(engine)
    slow = SlowStore(part, monkeypatch)
    try:
        engine.save(12, reason="test")
        assert slow.held.wait(120)
        assert engine.is_saving
        assert (engine.latest_step(), found(engine)) == (10, before)
        with pytest.raises(ConfigError, match="no checkpoint of step 12"):
            engine.load(12)
        there = elsewhere(root)
    finally:
        slow.go_on.set()
    assert (there["latest"], there["newest"]) == (10, before)
    assert "no checkpoint of step 12" in there["twelve"]
    engine.wait()
    after = engine.load(12)
    assert compare(after, engine.load()) == []
    there = elsewhere(root)
    assert (there["latest"], there["twelve"], there["newest"]) == (12, "loaded", found(engine))
    assert there["newest"] != before
    engine.close()
