"""The command: `python -m exactness.peers` measures all and writes docs/comparison.json and the table of docs/comparison.md.

`python -m exactness.peers dcp orbax` measures these, and leaves the other figures as they are, with their own day,
commit, machine and versions. Nothing is measured in a tree that no commit has.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from exactness.peers.trace import Place, Stage
from exactness.peers.trainings import ALL
from exactness.provenance import Provenance, Uncommitted, here, told

ROOT = Path(__file__).parents[2]
DATA = ROOT / "docs" / "comparison.json"
PAGE = ROOT / "docs" / "comparison.md"
COMMAND = "python -m exactness.peers"
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


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of one training."""

    resumed_at: int
    """Steps of the environment at the checkpoint."""
    steps: int
    """Of the undisturbed run."""
    first_different_step: int | None
    """The first step after the resume that is another one, counted from 1; None: none is."""
    weights_apart: float
    """The largest difference of a weight at the end."""
    equal_bits: bool
    """Whether the weights at the end are the same, bit for bit."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the table, with where it comes from."""

    figures: Figures
    measured: Provenance


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


def measure(name: str) -> Figures:
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
        one, other = np.load(whole.weights), np.load(second.weights)
    return Figures(
        resumed_at=resumed_at,
        steps=len(expected),
        first_different_step=first_different(expected[resumed_at:], found),
        weights_apart=float(np.abs(one - other).max()),
        equal_bits=bool(one.tobytes() == other.tobytes()),
    )


def first_different(expected: Sequence[str], found: Sequence[str]) -> int | None:
    """Return the number of the first step that is another one, from 1; None where none is.

    A run that made more or fewer steps differs where the shorter one ends.

    >>> first_different("abc", "abd"), first_different("abc", "ab"), first_different("abc", "abc")
    (3, 3, None)
    """
    pairs = zip(expected, found, strict=False)
    first = next((i for i, (a, b) in enumerate(pairs, 1) if a != b), None)
    if first is None and len(expected) != len(found):
        return min(len(expected), len(found)) + 1
    return first


def line(name: str, figures: Figures) -> str:
    """Return a line of the table."""
    training, way = TITLES[name]
    first = figures.first_different_step
    step = "none" if first is None else f"{first:,}"
    place = f"{figures.resumed_at:,} of {figures.steps:,}"
    apart = "**0, every bit equal**" if figures.equal_bits else f"{figures.weights_apart:.2g}"
    return f"| {training} | {way} | {place} | {step} | {apart} |"


def table(rows: dict[str, Row]) -> str:
    head = "| training | saved and loaded by | at step | first step after it that differs | largest difference of a weight at the end |"
    lines = [line(name, rows[name].figures) for name in TITLES if name in rows]
    return "\n".join([head, "|---|---|---:|---:|---:|", *lines])


def shown(rows: dict[str, Row]) -> str:
    """Return what the page shows of the figures."""
    sources = told(COMMAND, "", {name: rows[name].measured for name in TITLES if name in rows})
    return f"{sources}\n\n{table(rows)}"


def kept() -> dict[str, Row]:
    """Return what was measured last."""
    return msgspec.json.decode(DATA.read_bytes(), type=dict[str, Row]) if DATA.exists() else {}


def write(rows: dict[str, Row]) -> None:
    """Keep the figures, and put the table into the page."""
    DATA.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=1) + b"\n")
    text = PAGE.read_text()
    place = re.compile(r"^`python -m exactness\.peers.*?\n\n.*?(?=\n\n)", re.MULTILINE | re.DOTALL)
    PAGE.write_text(place.sub(lambda _: shown(rows), text, count=1))


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
    for name in arguments.names or ALL:
        try:
            before = here(PACKAGES)
            figures = measure(name)
            if here(PACKAGES).commit != before.commit:
                raise Uncommitted(f"{name}: the tree was changed while it was measured")
        except Uncommitted as error:
            parser.error(str(error))
        print(line(name, figures), flush=True)
        write({**kept(), name: Row(figures=figures, measured=before)})


if __name__ == "__main__":
    main()
