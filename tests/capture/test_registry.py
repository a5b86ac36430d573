"""A capturer that a person writes, in every place in which environments can stand: three ways, in processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.capture import handle_script as handles
from unbroken.capture import registry, verdicts
from unbroken.capture.environments import How, Verdict, env_policy
from unbroken.capture.probe import probe
from unbroken.capture.registry import register_env_capturer
from unbroken.errors import ConfigError
from unbroken.state.walk import capture
from unbroken.types import Fidelity

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


@pytest.fixture
def unregistered() -> Iterator[None]:
    before = registry.every()
    yield
    registry._captors.clear()
    registry.adopt(before)


@pytest.mark.parametrize(
    ("cls", "reads", "writes", "attributes", "named"),
    [
        (handles.Handled, handles.read, handles.write, True, "its attribute handle is an address"),
        (handles.Handled, handles.read, handles.write, False, ""),
        (handles.Handled, handles.read_with_handle, handles.write_by_handle, False, "saves an address"),
        (handles.Named, handles.read, handles.write, True, "another one built like it cannot take its state"),
        (handles.Named, handles.read, handles.write, False, ""),
        (handles.Puts, handles.read, handles.write, True, ""),
    ],
    ids=[
        "an address",
        "left alone",
        "an address in the state",
        "a name",
        "a name left alone",
        "kept for nothing",
    ],
)
def test_a_handle_that_only_this_process_knows_is_found_before_training(
    cls: type,
    reads: Callable[[Any], dict[str, Any]],
    writes: Callable[[Any, dict[str, Any]], None],
    attributes: bool,
    named: str,
    unregistered: None,
) -> None:
    register_env_capturer(cls, capture=reads, restore=writes, attributes=attributes)
    verdict = probe(cls())
    assert verdict.how is How.CAPTURER
    assert verdict.fidelity is (Fidelity.APPROXIMATE if named else Fidelity.EXACT)
    assert named in verdict.reason
    assert bool(verdict.reason) == bool(named)
    assert ("attributes=False" in verdict.reason) == (bool(named) and attributes)
    assert not named or "KeyError" in verdict.reason


def test_a_restore_that_raises_is_found_before_training(unregistered: None) -> None:
    def fails(env: Any, state: dict[str, Any]) -> None:
        raise LookupError("no such simulator")

    register_env_capturer(handles.Handled, capture=handles.read, restore=fails)
    verdict = probe(handles.Handled())
    assert (verdict.how, verdict.fidelity) == (How.CAPTURER, Fidelity.APPROXIMATE)
    assert "its restore raised LookupError: no such simulator" in verdict.reason


def test_what_a_capturer_carries_is_not_said_to_be_lost(unregistered: None) -> None:
    def state() -> Any:
        env = handles.Handled()
        env.handle_in_c = (number for number in range(3))  # type: ignore[attr-defined]
        return env

    def kinds() -> list[str]:
        return [note.kind for note in capture({"env": state()}, env_policy()).notes]

    assert kinds() == ["not captured"]
    register_env_capturer(handles.Handled, capture=handles.read, restore=handles.write)
    assert kinds() == ["external"]


def test_a_verdict_on_a_capturer_is_no_longer_believed_at_the_next_start() -> None:
    told = {
        "mine": Verdict(How.CAPTURER, Fidelity.APPROXIMATE, "its attribute handle is an address"),
        "other": Verdict(How.REPLAY),
    }
    assert verdicts._read(verdicts.record(told)[verdicts.KEY]) == {"other": Verdict(How.REPLAY)}


def test_a_restore_that_fails_for_a_handle_says_how_to_go_on_and_that_is_right(tmp_path: Path) -> None:
    def start(folder: str, log: str, kill_at: int, *how: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / folder).mkdir(exist_ok=True)
        command = [sys.executable, handles.__file__, str(tmp_path / folder), log, str(kill_at), *how]
        environment = {**os.environ, "PYTHONHASHSEED": str(len(log)), "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(command, env=environment, check=False, capture_output=True, text=True)

    assert start("U", "whole", -1).returncode == 0
    assert start("R", "before", 28, "attributes").returncode == -signal.SIGKILL
    shutil.copytree(tmp_path / "R", tmp_path / "C")
    failed = start("R", "failed", -1, "attributes")
    assert failed.returncode == 1
    told = failed.stderr.strip().rpartition("\n")[2]
    for words in (
        "capturer registered for Handled",
        "restore raised KeyError",
        "attributes=False",
        "as it was",
    ):
        assert words in told
    assert start("R", "after", -1).returncode == 0
    assert start("C", "after", -1, "cold").returncode == 0
    whole = seen(tmp_path / "U", "whole")
    assert seen(tmp_path / "R", "before", "after") == whole
    assert len(seen(tmp_path / "R", "after")) < len(whole)
    assert seen(tmp_path / "C", "before", "after") != whole


def test_only_a_class_and_two_functions_can_be_registered() -> None:
    with pytest.raises(ConfigError, match="is not a class"):
        register_env_capturer(SCRIPT, capture=lambda env: {}, restore=lambda env, state: None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs a function restore"):
        register_env_capturer(Path, capture=lambda env: {}, restore=None)  # type: ignore[arg-type]
