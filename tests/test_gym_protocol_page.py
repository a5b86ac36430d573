"""docs/gym-protocol.md runs as it stands, and what it lists is what there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from tests.adapters.nemo_gym.layered_examples import component, snapshot
from tests.adapters.nemo_gym.trainer import stand_in
from tests.adapters.nemo_gym.trainer.stand_in import Resources
from tests.pages import ROOT, blocks
from tests.repo.states import meta
from unbroken.adapters.nemo_gym import control, protocol, records, words
from unbroken.adapters.nemo_gym.keys import control_token
from unbroken.repo.repository import Repository

PAGE = "docs/gym-protocol.md"
TEXT = (ROOT / PAGE).read_text()
BLOCKS = blocks(PAGE)
SESSION = "6f1c2a4e"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the page begins with: a checkpoint in `runs`, and the command."""
    made = tmp_path_factory.mktemp("page")
    with Repository.open(made / "runs", "training", create=True).writer() as writer:
        writer.write(snapshot(component()), meta(12))
    (made / "bin").mkdir()
    for name, module in {"python": "", "unbroken": "-m unbroken"}.items():
        file = made / "bin" / name
        file.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        file.chmod(0o700)
    return made


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    """Two servers, for the addresses that the page uses."""
    token, stand_in.TOKEN = stand_in.TOKEN, control_token()
    first, second = Resources("res"), Resources("res")
    first.put(SESSION, {"total": 5, "steps": 1})
    yield {"http://127.0.0.1:12001": first.url, "http://127.0.0.1:12002": second.url}
    first.stop()
    second.stop()
    stand_in.TOKEN = token


def run(line: str, folder: Path) -> None:
    env = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        line, shell=True, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_blocks_run_in_their_order(number: int, folder: Path, addresses: dict[str, str]) -> None:
    kind, text = BLOCKS[number]
    for written, real in addresses.items():
        text = text.replace(written, real)
    if kind == "python":
        (folder / f"block{number}.py").write_text(text)
        run(f"python block{number}.py", folder)
        return
    for line in text.splitlines():
        assert line.startswith("$ ")
        run(line[2:], folder)


def cells(section: str) -> list[list[str]]:
    """Return the rows of the tables in a section."""
    inside = TEXT.split(f"## {section}", 1)[1].split("\n## ", 1)[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in inside.splitlines()
        if line.startswith("|")
    ]


def named(rows: list[list[str]], column: int = 0) -> set[str]:
    return {name for row in rows if len(row) > column for name in re.findall(r"`(_?[a-z_]+)`", row[column])}


def test_every_field_of_the_document_is_explained() -> None:
    told = named(cells("1. The document"))
    structs: tuple[type[msgspec.Struct], ...] = (
        protocol.SessionState,
        protocol.ToolCall,
        protocol.VerificationScores,
        protocol.AgentState,
        protocol.ResourceState,
        protocol.Metadata,
    )
    expected = {name for struct in structs for name in struct.__struct_fields__ if name != "extensions"}
    assert expected <= told
    for name in protocol.GymState.__struct_encode_fields__:
        assert f'"{name}"' in TEXT or name in told


def test_every_operation_is_in_its_table_with_what_it_takes() -> None:
    rows = {row[0].strip("`"): row for row in cells("7. Control operations") if row[0].startswith("`")}
    assert rows.keys() == control.OPERATIONS.keys()
    for operation, (takes, _) in control.OPERATIONS.items():
        assert named([rows[operation]], 1) == set(takes.__struct_fields__), operation
    for name in control.FREE:
        assert f"`{name}`" in TEXT


def test_every_word_is_explained() -> None:
    assert named(cells("6. Capabilities")) == set(get_args(control.Capability))
    for word in get_args(control.Refused):
        assert f"`{word}`" in TEXT
    for header in (
        words.CONTROL,
        words.EPOCH,
        words.ROLLOUT,
        words.ATTEMPT,
        words.CALL,
        words.REPLAYED,
        words.REFUSED,
    ):
        assert header in TEXT
    assert words.PREFIX in TEXT


def test_every_field_of_a_record_is_named() -> None:
    for struct in (records.SessionRecord, records.RolloutRecord, records.Call, records.Encoded):
        for field in struct.__struct_fields__:
            assert f"`{field}`" in TEXT, (struct.__name__, field)
