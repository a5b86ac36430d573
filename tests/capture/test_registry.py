"""A capturer that a person writes, in every place in which environments can stand: three ways, in processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from unbroken.capture.registry import register_env_capturer
from unbroken.errors import ConfigError

SCRIPT = Path(__file__).parent / "registry_script.py"
KILLED = 33


def run(folder: Path, log: str, kind: str, kill_at: int = -1, *, cold: bool = False) -> int:
    command = [sys.executable, str(SCRIPT), str(folder), log, kind, str(kill_at), *(["cold"] if cold else [])]
    environment = {**os.environ, "PYTHONHASHSEED": str(len(log) + 1), "OMP_NUM_THREADS": "1"}
    # Workers outlive a trainer that is killed, until the next start ends them: they must hold no pipe of ours.
    return subprocess.run(command, env=environment, check=False, stderr=subprocess.DEVNULL).returncode


def seen(folder: Path, *logs: str) -> dict[str, str]:
    """Return the digest of each step; of one that was made twice the later."""
    lines = [line.split() for log in logs for line in (folder / log).read_text().splitlines()]
    return {line[0]: line[1] for line in lines}


@pytest.mark.parametrize(
    "kind",
    [
        "sync",
        "async",
        pytest.param("async, spawned", marks=pytest.mark.exactness),
        "sb3, fork",
        pytest.param("sb3, forkserver", marks=pytest.mark.exactness),
    ],
)
def test_a_capturer_holds_wherever_the_environment_stands(kind: str, tmp_path: Path) -> None:
    if kind.startswith("sb3"):
        pytest.importorskip("stable_baselines3")
    undisturbed, resumed, cold = (tmp_path / name for name in "URC")
    for folder in (undisturbed, resumed):
        folder.mkdir()
    assert run(undisturbed, "whole", kind) == 0
    assert run(resumed, "before", kind, KILLED) == -signal.SIGKILL
    shutil.copytree(resumed, cold)
    assert run(resumed, "after", kind) == 0
    assert run(cold, "after", kind, cold=True) == 0
    whole = seen(undisturbed, "whole")
    assert seen(resumed, "before", "after") == whole
    assert len(seen(resumed, "after")) < len(whole)  # it went on, and did not begin anew
    assert seen(cold, "before", "after") != whole


def test_only_a_class_and_two_functions_can_be_registered() -> None:
    with pytest.raises(ConfigError, match="is not a class"):
        register_env_capturer(SCRIPT, capture=lambda env: {}, restore=lambda env, state: None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs a function restore"):
        register_env_capturer(Path, capture=lambda env: {}, restore=None)  # type: ignore[arg-type]
