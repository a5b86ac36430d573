"""A torn last line is cut off, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.adapters.nemo_gym.launch.rollouts_file import trim_torn_line
from unbroken.errors import ConfigError, CorruptObject

WHOLE = b'{"reward": 1.0}\n{"reward": 0.0}\n'


def test_a_torn_line_is_kept_aside(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    file.write_bytes(WHOLE + b'{"rew')
    assert trim_torn_line(file) == 5
    assert file.read_bytes() == WHOLE
    assert (tmp_path / "out.jsonl.torn").read_bytes() == b'{"rew\n'
    assert trim_torn_line(file) == 0


@pytest.mark.parametrize("content", [b"", WHOLE])
def test_a_whole_file_is_left_alone(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "out.jsonl"
    file.write_bytes(content)
    assert trim_torn_line(file) == 0
    assert file.read_bytes() == content
    assert list(tmp_path.iterdir()) == [file]


def test_a_whole_line_without_its_end_gets_one(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    file.write_bytes(WHOLE.rstrip(b"\n"))
    assert trim_torn_line(file) == 0
    assert file.read_bytes() == WHOLE


def test_damage_elsewhere_is_not_touched(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    file.write_bytes(b'{"reward\n' + WHOLE + b'{"rew')
    with pytest.raises(CorruptObject, match="Line 1 "):
        trim_torn_line(file)
    assert file.read_bytes() == b'{"reward\n' + WHOLE + b'{"rew'


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        trim_torn_line(tmp_path / "out.jsonl")


@given(texts=st.lists(st.text(max_size=8), min_size=1, max_size=4), data=st.data())
def test_wherever_it_is_torn_all_whole_lines_stay(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], data: st.DataObject
) -> None:
    lines = [json.dumps({"text": text}).encode() + b"\n" for text in texts]
    content = b"".join(lines)
    cut = data.draw(st.integers(0, len(content)))
    file = tmp_path_factory.mktemp("torn") / "out.jsonl"
    file.write_bytes(content[:cut])
    trim_torn_line(file)
    # A line of which only the end is missing is whole.
    whole = [line for index, line in enumerate(lines) if cut >= len(b"".join(lines[: index + 1])) - 1]
    assert file.read_bytes() == b"".join(whole)
