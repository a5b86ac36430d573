"""The guide runs as it stands, from top to bottom, in one directory.

A Python block that begins with a file's name is kept under it; a console block is what a person types.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "docs" / "guide.md").read_text()
BLOCKS: list[tuple[str, str]] = re.findall(
    r"^```(python|console)\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that all blocks share; `python` and `unbroken` in it are ours."""
    pytest.importorskip("stable_baselines3")
    made = tmp_path_factory.mktemp("guide")
    (made / "bin").mkdir()
    for name, words in {"python": "", "unbroken": "-m unbroken"}.items():
        file = made / "bin" / name
        file.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        file.chmod(0o700)
    return made


def run(line: str, folder: Path) -> None:
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        line,
        shell=True,
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    expected = int(line.startswith("unbroken diff"))  # of two that differ
    assert done.returncode == expected, f"{line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize(("number", "kind"), [(i, kind) for i, (kind, _) in enumerate(BLOCKS)])
def test_blocks_run_in_their_order(number: int, kind: str, folder: Path) -> None:
    text = BLOCKS[number][1]
    if kind == "python":
        named = re.match(r"# (\w+\.py)\n", text)
        file = named[1] if named else f"block{number}.py"
        (folder / file).write_text(text)
        run(f"python {file}", folder)
    else:
        for line in text.splitlines():
            assert line.startswith("$ ")
            run(line[2:], folder)


def test_every_option_of_the_callback_is_in_its_table_with_its_default() -> None:
    pytest.importorskip("stable_baselines3")
    import inspect

    from unbroken.sb3 import CheckpointCallback

    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| `(.+?)` \|", GUIDE, flags=re.MULTILINE)
    told = {name: default for names, default in rows for name in re.findall(r"`(\w+)`", names)}
    real = {
        name: str(parameter.default) if parameter.default != "" else '""'
        for name, parameter in inspect.signature(CheckpointCallback).parameters.items()
    }
    assert {name: default.strip('"') or '""' for name, default in told.items()} == real


def test_what_a_program_in_the_manner_of_cleanrl_gains_is_what_the_guide_shows() -> None:
    shown = re.findall(r"^```diff\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL)
    ours, plain = (
        (ROOT / "examples" / "cleanrl" / name).read_text().splitlines()[1:]
        for name in ("ppo.py", "ppo_plain.py")
    )
    changed = [line for line in difflib.ndiff(plain, ours) if line[0] in "+-"]
    (told,) = shown
    assert sorted(told.splitlines()) == sorted(line[0] + line[2:] for line in changed)


def test_links_within_the_guide_lead_to_headings() -> None:
    headings = {
        re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^## (.+)$", GUIDE, flags=re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", GUIDE)) <= headings
