"""docs/nemo-gym.md runs as it stands, in one directory, on real servers.

A block that begins with a file's name is kept under it; a console block is what a person types. `unbroken gym up` goes on running
until a script of the page starts servers itself. What `ng_run` does is in `test_official`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from stack import PATIENCE

from tests.ports import free_port

PAGE = (Path(__file__).parents[2] / "docs" / "nemo-gym.md").read_text()
BLOCKS: list[tuple[str, str]] = re.findall(
    r"^```(python|yaml|console)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL
)
UP = "gym up "
READY = "all servers are ready"
TOLD: dict[str, str] = dict(re.findall(r"^(\w+)  (http://127\.0\.0\.1:\d+)$", PAGE, flags=re.MULTILINE))
"""Names and addresses as the page shows them."""


class Terminal:
    """A user's directory, and what is typed there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said = ""
        self._head = free_port()
        self._addresses: dict[str, str] = {}
        self._servers: subprocess.Popen[str] | None = None
        (folder / "bin").mkdir(parents=True)
        for name, words in {"python": "", "unbroken": "-m unbroken"}.items():
            file = folder / "bin" / name
            file.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
            file.chmod(0o700)
        (folder / ".venv-gym").symlink_to(sys.prefix)
        (folder / "wrapped").mkdir()
        (folder / "wrapped" / "out.jsonl").write_text('{"reward": 1.0}\n{"resp')  # torn by a kill
        self._environment = {
            **os.environ,
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def keep(self, file: str, text: str) -> None:
        """Write a file of the page. The head server has a port of its own: others may be tested beside this."""
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if file == "adder.yaml":
            text += f"head_server: {{host: 127.0.0.1, port: {self._head}}}\n"
        path.write_text(text)

    def type(self, line: str) -> None:
        for name, address in TOLD.items():
            line = line.replace(address, self._addresses.get(name, address))
        if "ng_collect_rollouts" in line:
            line += f" '+head_server={{host: 127.0.0.1, port: {self._head}}}'"
        if UP in line:
            self._start(line)
            return
        if line.startswith("python "):
            self.leave()
        done = subprocess.run(
            line, shell=True, cwd=self.folder, env=self._environment, check=False, timeout=2 * PATIENCE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.said = done.stdout
        assert done.returncode == 0, f"{line}\n{done.stdout}"

    def _start(self, line: str) -> None:
        servers = self._servers = subprocess.Popen(
            f"exec {line}", shell=True, cwd=self.folder, env=self._environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert servers.stdout is not None
        said: list[str] = []
        for told in servers.stdout:
            said.append(told)
            if told.startswith(READY):
                break
        else:
            raise AssertionError("".join(said))
        self._addresses = dict(re.findall(r"^(\w+)  (http://\S+)$", "".join(said), flags=re.MULTILINE))

    def leave(self) -> None:
        """End the servers that were typed, as Ctrl-C does."""
        if self._servers is not None:
            self._servers.send_signal(signal.SIGTERM)
            said, _ = self._servers.communicate(timeout=PATIENCE)
            assert self._servers.returncode == 0, said
            self._servers = None


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Generator[Terminal]:
    made = Terminal(tmp_path_factory.mktemp("page") / "counter")
    yield made
    made.leave()


def file_of(text: str) -> str:
    """Return the name that a block begins with; empty: it has none."""
    named = re.match(r"# (\S+\.(?:py|yaml))\n", text)
    return named[1] if named and not named[1].startswith("examples/") else ""


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_blocks_run_in_their_order(number: int, terminal: Terminal) -> None:
    kind, text = BLOCKS[number]
    if file := file_of(text):
        terminal.keep(file, text)
    if kind == "console":
        for line in text.splitlines():
            assert line.startswith("$ ")
            terminal.type(line[2:])


def test_what_it_shows_was_really_so(terminal: Terminal) -> None:
    """After all blocks have run."""
    rows = [json.loads(line) for line in (terminal.folder / "out.jsonl").read_text().splitlines()]
    assert [row["reward"] for row in rows] == [1.0] * 5
    assert (terminal.folder / "wrapped" / "out.jsonl.torn").read_text() == '{"resp\n'
    document = json.loads((terminal.folder / "state.json").read_text())
    assert document["metadata"]["average_reward"] == 1.0
    assert document["metadata"]["completed_episodes"] == 40
    for name in TOLD:
        assert name == "head_server" or (terminal.folder / "logs" / name / "log").exists()


def test_a_class_that_is_wrapped_by_hand_is_served(terminal: Terminal, tmp_path: Path) -> None:
    shutil.copytree(terminal.folder / "resources_servers", tmp_path / "resources_servers")
    (tmp_path / "one.yaml").write_text(
        "counter: {resources_servers: {counter: {entrypoint: app.py, domain: agent}}}\n"
    )
    other = Terminal(tmp_path / "elsewhere")
    for name in ("resources_servers", "one.yaml"):
        shutil.move(tmp_path / name, other.folder / name)
    other.type("unbroken gym up one.yaml --dir logs")
    try:
        assert (other.folder / "logs" / "counter" / "log").exists()
    finally:
        other.leave()


def test_every_script_of_the_page_is_run() -> None:
    typed = "\n".join(text for kind, text in BLOCKS if kind == "console")
    scripts = [
        file for kind, text in BLOCKS if kind == "python" and "/" not in (file := file_of(text)) and file
    ]
    assert len(scripts) == 3
    assert [script for script in scripts if f"python {script}" not in typed] == []


def test_the_official_commands_are_those_that_are_tested() -> None:
    tested = (Path(__file__).parent / "test_official.py").read_text()
    (run,) = re.findall(r"^ng_run (.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    (collect,) = re.findall(r"^ng_collect_rollouts (.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    words = re.findall(r"(\+\w+)=", run + collect)
    assert "+skip_venv_if_present" in words and "+resume_from_cache" in words
    assert [word for word in words if f"{word}=" not in tested] == []
