"""The command: `python -m exactness.peers` measures all and writes docs/comparison.json and the table of docs/comparison.md.

`python -m exactness.peers dcp orbax` measures these, and leaves the other figures as they are.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import commit
from exactness.peers.trace import Place, Stage
from exactness.peers.trainings import ALL

ROOT = Path(__file__).parents[2]
DATA = ROOT / "docs" / "comparison.json"
PAGE = ROOT / "docs" / "comparison.md"
PACKAGES = ("stable_baselines3", "ray", "lightning", "torchrl", "torch", "orbax-checkpoint", "gymnasium")
TITLES = {
    "sb3_ppo": ("Stable-Baselines3, PPO", "`CheckpointCallback`, `PPO.load`"),
    "sb3_ppo_unbroken": ("the same", "Unbroken, killed"),
    "sb3_dqn": ("Stable-Baselines3, DQN", "`CheckpointCallback` with `save_replay_buffer`, `DQN.load`"),
    "sb3_dqn_unbroken": ("the same", "Unbroken, killed"),
    "rllib": ("RLlib, PPO", "`save_to_path`, `restore_from_path`"),
    "rllib_unbroken": ("the same", "Unbroken, killed"),
    "lightning": ("Lightning, an agent with its environment", "`save_checkpoint`, `ckpt_path`"),
    "lightning_unbroken": ("the same", "Unbroken, killed"),
    "torchrl": ("a loop", "TorchRL's `Checkpoint`: policy, optimizer, global generators"),
    "dcp": ("the same", "`torch.distributed.checkpoint`: model, optimizer, PyTorch's generator"),
    "orbax": ("the same", "Orbax: model, optimizer, PyTorch's generator"),
    "loop_unbroken": ("the same", "Unbroken, killed"),
}


UNTOLD = {"lightning_unbroken"}
"""Where an episode is played before anything is restored, so that steps cannot be counted from outside."""


def run(name: str, stage: Stage, folder: Path) -> None:
    """Carry out one stage in a process of its own."""
    with (folder / f"{stage}.said").open("wb") as said:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "exactness.peers", "--stage", stage, "--folder", str(folder), name],
            cwd=ROOT, stdout=said, stderr=said, check=False, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "JAX_PLATFORMS": "cpu"},
        )  # fmt: skip
    killed = stage == "first" and name.endswith("unbroken")
    if done.returncode != (-signal.SIGKILL if killed else 0):
        sys.exit(
            f"{name}, {stage}: status {done.returncode}\n{(folder / f'{stage}.said').read_text()[-3000:]}"
        )


def measure(name: str) -> dict[str, Any]:
    """Return what a library brings back of one training."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for stage in ("whole", "first", "second"):
            run(name, stage, folder)
        whole, second = (Place(stage, folder) for stage in ("whole", "second"))
        expected, found = (place.steps.read_text().split() for place in (whole, second))
        # Where nobody noted the step (the process was killed), it is the one from which the rest was made.
        noted = second.resumed_at
        resumed_at = int(noted.read_text()) if noted.exists() else len(expected) - len(found)
        assert resumed_at > 0, name
        expected = expected[resumed_at:]
        one, other = np.load(whole.weights), np.load(second.weights)
    # A run that made more or fewer steps differs where the shorter one ends.
    pairs = zip(expected, found, strict=False)
    first = next((i for i, (a, b) in enumerate(pairs, 1) if a != b), None)
    if first is None and len(expected) != len(found):
        first = min(len(expected), len(found)) + 1
    if name in UNTOLD:
        first = None
    return {
        "resumed_at": None if name in UNTOLD else resumed_at,
        "steps": resumed_at + len(expected),
        "first_different_step": first,
        "weights_apart": float(np.abs(one - other).max()),
        "equal_bits": bool(one.tobytes() == other.tobytes()),
    }


def row(name: str, figures: dict[str, Any]) -> str:
    """Return a line of the table."""
    training, way = TITLES[name]
    first = figures["first_different_step"]
    at = figures["resumed_at"]
    step = "–" if at is None else "none" if first is None else f"{first:,}"
    place = "–" if at is None else f"{at:,} of {figures['steps']:,}"
    apart = "**0, every bit equal**" if figures["equal_bits"] else f"{figures['weights_apart']:.2g}"
    return f"| {training} | {way} | {place} | {step} | {apart} |"


def table(rows: dict[str, dict[str, Any]]) -> str:
    head = "| training | saved and loaded by | at step | first step after it that differs | largest difference of a weight at the end |"
    lines = [row(name, rows[name]) for name in TITLES if name in rows]
    return "\n".join([head, "|---|---|---:|---:|---:|", *lines])


def measured(found: dict[str, Any]) -> str:
    """Return what the page shows of the figures."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    said = f"`python -m exactness.peers`, {found['date']} at commit {found['commit']}: {versions}; CPU."
    return f"{said}\n\n{table(found['rows'])}"


def write(rows: dict[str, dict[str, Any]]) -> None:
    """Keep the figures, and put the table into the page."""
    found: dict[str, Any] = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "commit": commit(ROOT, "exactness"),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "rows": rows,
    }
    DATA.write_text(json.dumps(found, indent=1) + "\n")
    text = PAGE.read_text()
    shown = re.compile(r"^`python -m exactness\.peers`, .*?\n\n.*?(?=\n\n)", re.MULTILINE | re.DOTALL)
    PAGE.write_text(shown.sub(lambda _: measured(found), text, count=1))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m exactness.peers")
    parser.add_argument("names", nargs="*", help="which trainings; all of them if none is named")
    parser.add_argument("--stage", choices=("whole", "first", "second"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if unknown := sorted({*arguments.names} - {*ALL}):
        parser.error(f"there is no {unknown[0]}; there are {', '.join(ALL)}")
    if arguments.stage:
        (name,) = arguments.names
        ALL[name](Place(arguments.stage, arguments.folder))
        sys.stdout.flush()
        os._exit(0)  # what a framework has started ends with it
    rows: dict[str, dict[str, Any]] = json.loads(DATA.read_text())["rows"] if DATA.exists() else {}
    for name in arguments.names or ALL:
        rows[name] = measure(name)
        print(row(name, rows[name]), flush=True)
        write(rows)


if __name__ == "__main__":
    main()
