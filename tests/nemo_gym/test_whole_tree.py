"""A training and its servers as one tree of processes: all of it killed at once, and the same command again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.nemo_gym.stack import HERE, PATIENCE
from tests.nemo_gym.whole_training import ADDS, LONG
from unbroken.adapters.nemo_gym import records
from unbroken.adapters.nemo_gym.trainer.payload import read_payload
from unbroken.repo.process import Process, identify
from unbroken.repo.repository import Repository

TURN = 3
TURNS = [turn for adds in ADDS for turn in range(adds + 2)] * 2
"""What the model is asked for in a whole training, in some order."""


def start(directory: Path, *options: str) -> subprocess.Popen[str]:
    directory.mkdir(exist_ok=True)
    paths = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return subprocess.Popen(
        [sys.executable, str(HERE / "whole_training.py"), str(directory), *options],
        env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(directory: Path, *options: str) -> tuple[dict[str, Any], str]:
    """Run a training to its end; return what it came to, and what it said."""
    process = start(directory, *options)
    out, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    found: dict[str, Any] = json.loads(out)
    return found, said


def model_calls(directory: Path) -> list[int]:
    try:
        return [int(line) for line in (directory / "model_calls").read_text().splitlines()]
    except FileNotFoundError:
        return []


def tree(pid: int) -> Iterator[Process]:
    """Return a process and all that it has started, down to the servers."""
    yield identify(pid)
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from tree(int(child))


def killed(directory: Path, *options: str) -> None:
    """Run a training until two rollouts stand at the turn; then kill all its processes at once."""
    hold = directory / "hold" / str(TURN)
    hold.parent.mkdir(parents=True)
    hold.touch()
    training = start(directory, *options)
    deadline = time.monotonic() + PATIENCE
    while model_calls(directory).count(TURN) < 2:
        assert training.poll() is None and time.monotonic() < deadline, training.communicate()
        time.sleep(0.02)
    every = list(tree(training.pid))
    assert len(every) == 5, "the training, what forks servers, and three servers"
    for process in every:
        os.kill(process.pid, signal.SIGSTOP)  # nobody sees another one die
    for process in every:
        os.kill(process.pid, signal.SIGKILL)
    training.communicate(timeout=PATIENCE)
    assert all(process.wait(PATIENCE) for process in every)
    hold.unlink()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("undisturbed")
    found, _ = finish(directory)
    assert sorted(model_calls(directory)) == sorted(TURNS)
    assert {reward for _, reward, _ in found["trained"]} == {0.0, 1.0}
    return found


def test_all_is_killed_in_a_collection_and_the_same_command_ends_it(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    killed(tmp_path)
    found, said = finish(tmp_path)
    assert found == undisturbed
    assert "goes on at step 2" in said
    # Nothing is generated twice but the two answers that were under way.
    assert sorted(model_calls(tmp_path)) == sorted([*TURNS, TURN, TURN])


@pytest.mark.exactness
def test_without_the_logs_of_its_servers_it_ends_the_same_at_a_higher_price(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    """Another node: what came after the checkpoint is done again."""
    killed(tmp_path)
    shutil.rmtree(tmp_path / "gym")
    found, said = finish(tmp_path)
    assert found == undisturbed
    assert "from its part of the checkpoint" in said
    again = [turn for adds in ADDS[2:] for turn in range(adds + 2)] * 2
    before = [turn for adds in ADDS[:2] for turn in range(adds + 2)] * 2 + [*range(TURN + 1)] * 2
    assert sorted(model_calls(tmp_path)) == sorted(before + again)


def test_an_older_checkpoint_on_another_node_has_the_records_of_what_was_under_way(tmp_path: Path) -> None:
    undisturbed, _ = finish(tmp_path, "long")
    before = len(model_calls(tmp_path))
    repository = Repository.open(tmp_path / "runs", "train")
    (commit,) = [commit for commit in repository.commits() if commit.step == 1]
    payload = read_payload(repository.load(commit).components["gym"])
    rollouts = [records.rollout(data) for data in payload.servers["agent"].records.values()]
    (under_way,) = [rollout for rollout in rollouts if rollout.status == 0]
    known = sum(answer.model for answer in under_way.answers)
    assert 0 < known < LONG
    shutil.rmtree(tmp_path / "gym")
    found, said = finish(tmp_path, "long", "resume=1")
    assert found == undisturbed
    assert "from its part of the checkpoint" in said
    again = [turn for adds in ADDS[1:] for turn in range(adds + 2)] * 2
    assert sorted(model_calls(tmp_path)[before:]) == sorted([*again, *range(known, LONG + 2)])
