"""The example with Ray Train: everything is killed in the middle of episodes, and it ends as if nothing had happened.

Its training runs in the main environment (`.venv`), which has PyTorch; its servers in this one.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.rays import apart
from tests.ports import free_port
from unbroken.proving.supervisor import descendants, kill

ROOT = Path(__file__).parents[2]
PYTHON = Path(ROOT, os.environ.get("VENV", ".venv"), "bin", "python")
ITERATIONS, ROWS, EVERY = 8, 4, 2


@pytest.fixture(scope="module")
def python() -> Path:
    if not PYTHON.exists():
        assert os.environ.get("CI") != "true", f"{PYTHON} is missing"
        pytest.skip(f"the environment of the training, {PYTHON}, is missing")
    return PYTHON


class Training:
    """Starts of the example over one directory."""

    def __init__(self, python: Path, root: Path, port: int) -> None:
        self.root = root
        self._command = [
            str(python), str(ROOT / "examples" / "nemo_gym_ray_train.py"), "--save-path", str(root),
            "--gym-python", sys.executable, "--model-port", str(port), "--iterations", str(ITERATIONS),
            "--rows", str(ROWS), "--save-every", str(EVERY),
        ]  # fmt: skip

    @property
    def run(self) -> Path:
        return self.root / "nemo_gym"

    def start(self) -> subprocess.Popen[bytes]:
        self.root.mkdir(exist_ok=True)
        with open(self.root / "output.txt", "ab") as output:
            return subprocess.Popen(
                self._command,
                env={**apart(), "UNBROKEN_ROOT": "", "PYTHONPATH": ""},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def finish(self) -> dict[str, Any]:
        process = self.start()
        assert process.wait(timeout=600) == 0, self.said()[-5000:]
        found: dict[str, Any] = json.loads((self.root / "summary.json").read_text())
        return found

    def kill_when(self, moment: Callable[[], bool]) -> None:
        """Start, and end the whole tree with SIGKILL once it is `moment`."""
        process = self.start()
        try:
            deadline = time.monotonic() + 600
            while not moment():
                assert process.poll() is None, self.said()[-5000:]
                assert time.monotonic() < deadline, self.said()[-5000:]
                time.sleep(0.005)
        finally:
            kill_tree(process)

    def model_calls(self) -> Counter[str]:
        """Return how often each turn of each rollout was asked for."""
        path = self.root / "model_calls.txt"
        return Counter(path.read_text().splitlines() if path.exists() else ())

    def said(self) -> str:
        return (self.root / "output.txt").read_text(errors="replace")


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all below it, first what would start others."""
    below: list[tuple[int, int]] = list(descendants(process.pid))
    process.send_signal(signal.SIGKILL)
    for pid, born in below:
        kill(pid, born)
    process.wait()
    while any(kill(pid, born) for pid, born in below):
        time.sleep(0.01)


@pytest.fixture(scope="module")
def undisturbed(python: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Training, dict[str, Any]]:
    directory = tmp_path_factory.mktemp("undisturbed")
    training = Training(python, directory / "run", free_port())
    return training, training.finish()


def test_killed_in_the_middle_of_episodes_it_ends_as_if_nothing_had_happened(
    python: Path, undisturbed: tuple[Training, dict[str, Any]], tmp_path: Path
) -> None:
    twin, summary = undisturbed
    calls = twin.model_calls()
    assert set(calls.values()) == {1}
    training = Training(python, tmp_path / "killed", free_port())
    third = len(calls) // 3
    training.kill_when(lambda: training.model_calls().total() > third)
    before = training.model_calls()
    training.kill_when(lambda: training.model_calls().total() > 2 * third)
    assert training.model_calls().total() > before.total()
    assert training.finish() == summary
    repeated = {turn: count for turn, count in training.model_calls().items() if count > 1}
    assert training.model_calls().keys() == calls.keys()
    # At each of two kills one turn of each episode may have been under way: asked for, and not yet written down.
    assert sum(count - 1 for count in repeated.values()) <= 2 * ROWS
    assert "servers came back" in training.said()
    # Weights, optimizer, generators, and every session with its calls and the digest of its state.
    compared = subprocess.run(
        [sys.executable, "-m", "unbroken", "diff", str(twin.run), str(training.run)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert compared.returncode == 0, compared.stdout + compared.stderr
    assert re.search(r"gym\s+equal", compared.stdout)


LOSSES = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from nemo_gym_ray_train import Policy, loss_of
from unbroken.nemo_gym import Rollout

row = {"initial_count": 1, "expected_count": 3}
response = {"response": {"output": [{"generation_token_ids": [1]}, {"generation_token_ids": [3]}]}}
done = [Rollout(f"0-{i}", row, 0, "completed", reward=r, response=response) for i, r in enumerate((0.0, 1.0))]
lost = Rollout("0-2", row, 2, "unresolved", error="nobody answered")
torch.manual_seed(1)
policy = Policy()
assert torch.equal(loss_of(policy, [done[0], lost, done[1]])[0], loss_of(policy, done)[0])
assert loss_of(policy, [lost, done[1]])[1] == 1.0
try:
    loss_of(policy, [lost])
except RuntimeError as error:
    print(error)
"""


def test_what_has_no_reward_is_not_learned_from(python: Path) -> None:
    done = subprocess.run(
        [python, "-c", LOSSES, ROOT / "examples"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "No rollout of this iteration has a reward" in done.stdout


@pytest.mark.exactness
def test_without_what_the_servers_wrote_down_the_policy_is_asked_again(
    python: Path, undisturbed: tuple[Training, dict[str, Any]], tmp_path: Path
) -> None:
    calls = undisturbed[0].model_calls()
    training = Training(python, tmp_path / "cold", free_port())
    training.kill_when(lambda: training.model_calls().total() > 2 * len(calls) // 3)
    (training.root / "servers").rename(tmp_path / "elsewhere")
    before = training.model_calls()
    training.finish()
    again = training.model_calls() - before
    # Whole episodes of since the newest checkpoint, and not only the turns under way.
    assert (again & before).total() > ROWS
