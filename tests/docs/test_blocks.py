"""Every block of code in a page for people is run, read, compared with what it is taken from, or says why it is not.

How a block is run stands in `tests/pages.py`. A page that needs more than a directory has a test of its own, which
`ELSEWHERE` names; all others, those to come too, are played here.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from tests.pages import ROOT, Block, Stage, every_block, not_in_its_source
from unbroken.cli.app import app
from unbroken.engine.configuration.effective import effective

ELSEWHERE = {
    "README.md": "tests/test_readme.py",
    "docs/guide.md": "tests/test_guide.py",
    "docs/gym-protocol.md": "tests/test_gym_protocol_page.py",
    "docs/many-workers.md": "tests/test_many_workers_page.py",
    "docs/nemo-gym.md": "tests/nemo_gym/test_page.py",
}
"""Pages whose Python and console blocks are run by another test."""
INSTEAD = {
    "docs/index.md": {"model.learn(10_000": "model.learn(512"},
    "docs/backup.md": {"s3://bucket/runs": "mirror"},
    "docs/monitoring.md": {"9109": "0"},
}
"""What stands for what, so that a page is played in seconds and on any machine."""
IMPORTS = [name for name in ("stable_baselines3", "unbroken.cli.app") if find_spec(name.partition(".")[0])]
SHOWN = {"", "text", "diff", "hex", "json", "toml", "svg"}
"""Kinds of blocks that nobody runs."""
PAGES = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    *sorted(file.relative_to(ROOT).as_posix() for file in (ROOT / "docs").rglob("*.md")),
]
BLOCKS = {page: every_block(page) for page in PAGES}
RUN = [
    page
    for page, blocks in BLOCKS.items()
    if page not in ELSEWHERE
    and any(
        block.kind in ("python", "console") and not block.not_run and block.source is None for block in blocks
    )
]


def every(kind: str) -> list[Block]:
    return [block for blocks in BLOCKS.values() for block in blocks if block.kind == kind]


def where(block: Block) -> str:
    return f"{block.page}:{block.line}"


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a process serves that has imported what pages need."""
    place = str(tmp_path_factory.mktemp("preloaded") / "place")
    serving = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.preloaded", place, *IMPORTS],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert serving.stdout is not None
    assert serving.stdout.readline() == "ready\n"
    yield place
    serving.communicate()


@pytest.mark.parametrize("page", RUN)
def test_the_blocks_of_a_page_run_in_their_order(page: str, tmp_path: Path, preloaded: str) -> None:
    if any("stable_baselines3" in block.text for block in BLOCKS[page]):
        pytest.importorskip("stable_baselines3")
    stage = Stage(tmp_path / "page", replaced=INSTEAD.get(page), preloaded=preloaded)
    for block in BLOCKS[page]:
        stage.play(block)


def test_a_page_that_is_run_elsewhere_is_named_there() -> None:
    for page, test in ELSEWHERE.items():
        assert page in (ROOT / test).read_text() or Path(page).name in (ROOT / test).read_text(), page


def test_every_kind_of_block_has_its_way() -> None:
    """A new kind is run here, or it is one that nobody runs."""
    ways = {"python", "console", "sh", "yaml"} | SHOWN
    assert [where(block) for blocks in BLOCKS.values() for block in blocks if block.kind not in ways] == []


def test_who_is_not_run_says_why() -> None:
    told = [block for blocks in BLOCKS.values() for block in blocks if block.not_run]
    assert [where(block) for block in told if len(block.not_run.split()) < 4] == []


def test_a_mark_that_stands_above_no_block_is_a_mistake() -> None:
    for page in PAGES:
        marks = len(re.findall(r"^<!-- not run:", (ROOT / page).read_text(), flags=re.MULTILINE))
        assert marks == sum(bool(block.not_run) for block in BLOCKS[page]), page


def test_what_is_taken_from_an_example_stands_in_it() -> None:
    quoted = [(block, source) for block in every("python") if (source := block.source) is not None]
    assert len(quoted) > 5
    lost = [
        (where(block), not_in_its_source(block.text, source)) for block, source in quoted if source.exists()
    ]
    assert [found for found in lost if found[1]] == []
    assert [where(block) for block, source in quoted if not source.exists()] == []


def test_every_file_of_settings_that_is_shown_can_be_read(tmp_path: Path) -> None:
    shown = [block for block in every("yaml") if block.text.startswith("checkpoint:")]
    assert len(shown) > 3
    for block in shown:
        (tmp_path / "unbroken.yaml").write_text(block.text)
        settings = effective({"UNBROKEN_CONFIG": str(tmp_path / "unbroken.yaml")})
        assert settings.origins, where(block)


def test_every_yaml_and_json_block_can_be_read() -> None:
    for block in every("yaml"):
        yaml.safe_load(block.text)
    for block in every("json"):
        if not block.not_run:
            json.loads(block.text)


EXTRAS = set(re.findall(r"^([\w-]+) = \[", (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE))
COMMAND = r"(?:[A-Z_]+=\S+ )*(?:\S*/bin/)?unbroken (.*)$"
TYPED = [
    (block, line)
    for kind, mark in {"sh": "^", "": "^", "console": r"^\$ ", "text": r"^\$ "}.items()
    for block in every(kind)
    for line in re.findall(mark + COMMAND, block.text, flags=re.MULTILINE)
]
ROOT_COMMAND: Any = typer.main.get_command(app)


def test_every_extra_that_is_installed_somewhere_exists() -> None:
    named = {
        extra
        for page in PAGES
        for found in re.findall(r"pip install [^\n`]*?\.?\[([\w,-]+)\]", (ROOT / page).read_text())
        for extra in found.split(",")
    }
    assert {"sb3", "cloud"} <= named
    assert named <= EXTRAS


def test_every_command_that_is_shown_exists_with_its_options() -> None:
    assert len(TYPED) > 30
    assert [f"{where(block)} {line}" for block, line in TYPED if not _exists(line)] == []


def _exists(line: str) -> bool:
    words = shlex.split(line.partition(" #")[0].rstrip(" &"))
    command = ROOT_COMMAND
    while (inner := getattr(command, "commands", None)) and words and not words[0].startswith("-"):
        if words[0] not in inner:
            return False
        command, words = inner[words[0]], words[1:]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    own = words[: words.index("--")] if "--" in words else words
    return all(word.partition("=")[0] in known | {"--help"} for word in own if word.startswith("--"))


def test_a_block_for_the_shell_installs_or_calls_what_exists_or_says_why_it_is_not_run() -> None:
    known = re.compile(r"(?:\S+ -m venv \S+ && )?(?:\S*pip install |(?:[A-Z_]+=\S+ )*unbroken |\s*#|\s*$)")
    lines = [(block, line) for block in every("sh") if not block.not_run for line in block.text.splitlines()]
    assert [f"{where(block)} {line}" for block, line in lines if not known.match(line)] == []
