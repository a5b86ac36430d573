"""SB3's own checkpoints are not written in one step; the lane takes the newest that can be read."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from demo.tasks import TASKS
from demo.train_sb3 import load_newest


@pytest.mark.parametrize("torn", ["empty", "no entries", "cut off"])
def test_a_checkpoint_that_the_kill_has_torn_is_passed_over(tmp_path: Path, torn: str) -> None:
    task = TASKS["ppo"]
    model = task.build(task.envs())
    whole = tmp_path / "rl_model_10_steps.zip"
    model.save(whole)
    newest = tmp_path / "rl_model_20_steps.zip"
    if torn == "no entries":
        zipfile.ZipFile(newest, "w").close()
    else:
        newest.write_bytes(b"" if torn == "empty" else whole.read_bytes()[:2000])
    found = load_newest(task, tmp_path)
    assert found is not None
    newest.unlink()
    whole.unlink()
    assert load_newest(task, tmp_path) is None
