"""Monitor files in two columns: whatever is in one, the parts give it back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.adapters.sb3.files import Rows, joined
from unbroken.errors import CorruptObject

LINES = st.lists(st.text(st.sampled_from('0.,"\r ab\u00e9'), max_size=12), max_size=6)
ENDS = st.sampled_from(["\n", "\r\n"])


@given(pieces=st.lists(LINES, max_size=3), end=ENDS)
def test_a_file_read_in_pieces_comes_back(
    pieces: list[list[str]], end: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("monitor") / "monitor.csv"
    path.write_bytes(b"")
    rows = Rows()
    for lines in pieces:
        with path.open("ab") as file:
            file.write("".join(line + end for line in lines).encode())
        rows.extend(str(path))
    assert joined(rows.header, bytes(rows.rows), bytes(rows.times)) == path.read_bytes()


def test_the_times_stand_apart(tmp_path: Path) -> None:
    path = tmp_path / "monitor.csv"
    path.write_bytes(b'#{"t_start": 1.5}\nr,l,t,goal\r\n1.0,10,0.123,x\r\n2.0,11,0.456,"y,z"\r\n')
    rows = Rows()
    rows.extend(str(path))
    assert bytes(rows.times) == b"t\n0.123\n0.456\n"
    assert b"0.123" not in rows.rows and b'"y,z"' in rows.rows


def test_a_row_that_is_being_written_waits(tmp_path: Path) -> None:
    path = tmp_path / "monitor.csv"
    path.write_bytes(b"#{}\n1.0,10,0.")
    rows = Rows()
    rows.extend(str(path))
    assert not rows.rows
    with path.open("ab") as file:
        file.write(b"123\n")
    rows.extend(str(path))
    assert bytes(rows.times) == b"0.123\n"


def test_a_file_that_was_begun_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "monitor.csv"
    path.write_bytes(b"#{}\n1.0,10,0.1\n2.0,10,0.2\n")
    rows = Rows()
    rows.extend(str(path))
    path.write_bytes(b"#{}\n3.0,10,0.3\n")
    rows.extend(str(path))
    assert bytes(rows.times) == b"0.3\n"


def test_parts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(CorruptObject):
        joined(b"#{}\n", b"1.0,10,\n2.0,10,\n", b"0.1\n")
