"""Programs of the documentation that take a second: killed and started again, they end as if nothing had happened.

Two quickstarts, the adapter and the capturer. U is undisturbed, R killed by SIGKILL and started again, C started again with one part
left cold. Each start is a process of its own; a quickstart is the file's text with fewer steps. All quickstarts as they stand are
in `test_whole`.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from exactness.forked import Forking
from unbroken.capture.volatile import without_clocks
from unbroken.repo.repository import Repository
from unbroken.state.diff import compare

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
IMPORTS = ("stable_baselines3", "unbroken.sb3", "unbroken.adapters.loop")
SHORT = {
    "sb3": ({"10_000": "600", "save_freq=250": "save_freq=40"}, 560),
    "loop": ({"8_000": "600", "every=500": "every=100"}, 250),
}
"""Of each quickstart what stands for what, and the step to die at."""
WHOLE = {
    "adapter": ("minilearn", 1_710, "optimizer.speeds"),
    "capturer": ("swing", 1_330, "capturer"),
}
"""Of each other program its run, the step to die at, and what is left cold."""


class Starts:
    """Starts of quickstarts, by a process that has imported what they need."""

    def __init__(self) -> None:
        self._process = Forking("-m", "tests.quickstart.runner", *IMPORTS, environment={})

    def start(
        self, script: Path, folder: Path, *, kill_at: int = -1, cold: str = "-", expect: int = 0
    ) -> str:
        """Start the script in a folder; return what it said."""
        folder.mkdir(exist_ok=True)
        log = folder / "said"
        log.unlink(missing_ok=True)
        order = {
            "script": str(script),
            "folder": str(folder),
            "log": str(log),
            "kill_at": kill_at,
            "cold": cold,
        }
        status = self._process.run(json.dumps(order))
        said = log.read_text()
        assert status == expect, said
        return said

    def close(self) -> None:
        self._process.close()


@pytest.fixture(scope="module")
def starts() -> Iterator[Starts]:
    pytest.importorskip("stable_baselines3")
    made = Starts()
    yield made
    made.close()


@pytest.mark.parametrize("name", SHORT)
def test_a_quickstart_that_is_killed_ends_with_the_same_weights(
    name: str, starts: Starts, tmp_path: Path
) -> None:
    instead, kill_at = SHORT[name]
    text = (EXAMPLES / "quickstart" / f"train_{name}.py").read_text()
    for long, short in instead.items():
        assert text.count(long) == 1
        text = text.replace(long, short)
    script = tmp_path / f"train_{name}.py"
    script.write_text(text)
    prove(starts, script, tmp_path, job=name, kill_at=kill_at, cold="generators")


@pytest.mark.parametrize("example", WHOLE)
def test_what_a_user_is_shown_how_to_write_brings_back_everything(
    example: str, starts: Starts, tmp_path: Path
) -> None:
    job, kill_at, cold = WHOLE[example]
    prove(starts, EXAMPLES / example / "train.py", tmp_path, job=job, kill_at=kill_at, cold=cold)


def prove(starts: Starts, script: Path, folder: Path, *, job: str, kill_at: int, cold: str) -> None:
    undisturbed, killed, without = (folder / name for name in "URC")
    expected = last_line(starts.start(script, undisturbed))
    starts.start(script, killed, kill_at=kill_at, expect=-9)
    shutil.copytree(killed, without)
    said = starts.start(script, killed)
    assert re.search(
        r"^unbroken: goes on at step [1-9][\d,]* from the newest checkpoint.*exact: all \d parts$",
        said,
        re.MULTILINE,
    )
    assert last_line(said) == expected
    assert differences(undisturbed / "runs", killed / "runs", job) == []
    assert last_line(starts.start(script, without, cold=cold)) != expected


def last_line(said: str) -> str:
    """Return the line with which a program ends: what it has come to."""
    return [line for line in said.splitlines() if re.search(r"\b(?:weights|values) [0-9a-f]{16}$", line)][-1]


def differences(one: Path, other: Path, job: str) -> list[str]:
    """Return the places at which the final states of two runs differ."""
    ends = []
    for root in (one, other):
        repository = Repository.open(root, job)
        commit = repository.commits()[0]
        assert commit.position == "end"
        ends.append(repository.load(commit))
    return [leaf.place for leaf in without_clocks(compare(*ends), *ends)]
