"""docs/gym-protocol.md runs as it stands, and what it lists is what there is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import get_args

import msgspec
import pytest

from tests.adapters.nemo_gym.layered_examples import component, snapshot
from tests.adapters.nemo_gym.trainer import stand_in
from tests.adapters.nemo_gym.trainer.stand_in import Resources
from tests.pages import ROOT, Stage, every_block
from tests.repo.states import meta
from unbroken.adapters.nemo_gym import control, protocol, records, words
from unbroken.adapters.nemo_gym.keys import control_token
from unbroken.repo.repository import Repository

PAGE = "docs/gym-protocol.md"
TEXT = (ROOT / PAGE).read_text()
BLOCKS = [block for block in every_block(PAGE) if block.kind in ("python", "console")]
SESSION = "6f1c2a4e"


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


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, addresses: dict[str, str]) -> Stage:
    """What the page begins with: a checkpoint in `runs`, and the command."""
    made = Stage(tmp_path_factory.mktemp("protocol") / "page", replaced=addresses)
    with Repository.open(made.folder / "runs", "training", create=True).writer() as writer:
        writer.write(snapshot(component()), meta(12))
    return made


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_blocks_run_in_their_order(number: int, stage: Stage) -> None:
    stage.play(BLOCKS[number])


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
