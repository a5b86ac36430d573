"""Lines as bytes: what is damaged, torn, moved or of another log is told, and all others are read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.adapters.nemo_gym.frames import (
    HEADER,
    MAGIC,
    MOST_LABEL,
    Damaged,
    Frames,
    Line,
    Scanned,
)
from unbroken.errors import ConfigError

KEY = b"k" * 32
LOG = b"thislog."
LINES = [Line("alpha", b"one"), Line("beta", b""), Line("", b"\x00\xff" * 20), Line("ünï", b"last")]


def written(lines: list[Line], *, key: bytes = KEY, log: bytes = LOG) -> list[bytes]:
    """Return the bytes of the first line and of each of these."""
    frames = Frames(key)
    numbered = enumerate(lines, 1)
    return [
        frames.first(log),
        *(frames.head(log, n, line.label, line.payload) + line.payload for n, line in numbered),
    ]


def scan(data: bytes, *, key: bytes = KEY, most: int = 1 << 30) -> Scanned:
    """Read lines, by calls that give at most `most` bytes and are never asked for more than there can be."""

    def read(offset: int, count: int) -> bytes:
        assert count <= max(len(data), 1 << 20), "memory was asked for before the size was checked"
        return data[offset : offset + min(count, most)]

    return Frames(key).scan(read, len(data))


@given(lines=st.lists(st.builds(Line, st.text(max_size=9), st.binary(max_size=99))), most=st.integers(1, 99))
def test_what_was_written_is_read(lines: list[Line], most: int) -> None:
    data = b"".join(written(lines))
    found = scan(data, most=most)
    assert found.lines == lines
    assert (found.log, found.number, found.end, found.intact) == (
        LOG,
        len(lines) + 1,
        len(data),
        len(lines) + 1,
    )
    assert (found.damaged, found.notes, found.foreign) == ([], [], False)


def test_a_line_larger_than_the_window_is_read() -> None:
    lines = [Line("a", b"x" * (3 << 20)), Line("b", MAGIC * (1 << 18)), Line("c", b"")]
    assert scan(b"".join(written(lines))).lines == lines


def test_a_damaged_byte_costs_one_line_wherever_it_is() -> None:
    parts = written(LINES)
    data = b"".join(parts)
    starts = [sum(map(len, parts[:n])) for n in range(len(parts))]
    for at in range(len(data)):
        hit = max(n for n, start in enumerate(starts) if start <= at)
        for flipped in (1, 0x80, 0xFF):
            spoilt = data[:at] + bytes([data[at] ^ flipped]) + data[at + 1 :]
            found = scan(spoilt)
            assert found.lines == [line for n, line in enumerate(LINES, 1) if n != hit], (at, flipped)
            assert found.end == len(data), (at, flipped)
            if hit == 0:
                assert found.damaged == []
                assert found.notes == ["the first line, which belongs to no session, is damaged"]
                continue
            (damaged,) = found.damaged
            assert found.notes == []
            # The fields that tell the label, or the label itself: then it cannot be told any more.
            inside = at - starts[hit]
            lost = 28 <= inside < 34 or (
                inside >= HEADER and inside < HEADER + len(LINES[hit - 1].label.encode())
            )
            assert damaged.label == ("" if lost else LINES[hit - 1].label), (at, flipped)


def test_a_file_that_ends_anywhere_is_read_up_to_the_last_whole_line() -> None:
    parts = written(LINES)
    data = b"".join(parts)
    ends = [sum(map(len, parts[: n + 1])) for n in range(len(parts))]
    for size in range(len(parts[0]), len(data) + 1):
        whole = sum(end <= size for end in ends)
        found = scan(data[:size])
        assert found.lines == LINES[: whole - 1], size
        assert found.end == ends[whole - 1], size
        assert (found.damaged, found.notes) == ([], []), size


def test_a_torn_line_behind_a_damaged_one_is_torn_all_the_same() -> None:
    parts = written(LINES)
    broken = parts[3][:-1] + b"?"
    whole = b"".join([*parts[:3], broken])
    for rest in range(1, len(parts[4])):
        found = scan(whole + parts[4][:rest])
        assert found.end == len(whole), rest
        assert found.damaged == [Damaged("", "its seal does not fit")]


@pytest.mark.parametrize("size", [1, 4, 53, 54, 4095, 10_000])
def test_zeros_at_the_end_are_a_line_that_never_reached_the_disk(size: int) -> None:
    data = b"".join(written(LINES))
    found = scan(data + bytes(size))
    assert (found.lines, found.damaged, found.end) == (LINES, [], len(data))
    other = scan(data + bytes(size) + b"x")
    assert (other.lines, other.damaged) == (LINES, [Damaged("", "its header cannot be read")])
    assert other.end == len(data) + size + 1


def test_a_line_that_lost_its_end_does_not_swallow_those_behind_it() -> None:
    parts = written(LINES)
    found = scan(b"".join([*parts[:3], parts[3][:-5], parts[4]]))
    assert found.lines == [LINES[0], LINES[1], LINES[3]]
    assert found.damaged == [Damaged("", "its seal does not fit")]
    long = written([Line("long", b"x" * 1000), Line("short", b"y")])
    found = scan(long[0] + long[1][:200] + long[2])
    assert found.lines == [Line("short", b"y")]
    assert found.damaged == [Damaged("long", "it ends before its time")]


def test_two_damaged_lines_in_a_row_are_both_named() -> None:
    parts = written(LINES)
    for broken in (parts[1][:-1] + b"?", parts[1][:20] + b"?" + parts[1][21:]):
        shot = parts[2][:20] + b"?" + parts[2][21:]
        found = scan(b"".join([parts[0], broken, shot, parts[3], parts[4]]))
        assert [damaged.label for damaged in found.damaged] == ["alpha", "beta"]
        assert found.lines == LINES[2:]


def test_lines_of_another_log_are_refused() -> None:
    parts = written(LINES)
    other = written([Line("alpha", b"from elsewhere")], log=b"another.")
    found = scan(b"".join([*parts[:2], other[1], *parts[2:]]))
    assert found.lines == LINES
    assert found.damaged == [Damaged("alpha", "it belongs to another log")]


def test_lines_that_stand_elsewhere_or_twice_are_refused() -> None:
    parts = written(LINES)
    found = scan(b"".join([*parts, parts[1]]))
    assert found.lines == LINES
    assert found.damaged == [Damaged("alpha", "it is out of order: line 1 stands behind line 4")]


def test_missing_lines_are_told() -> None:
    parts = written(LINES)
    assert scan(b"".join([*parts[:2], parts[4]])).notes == ["2 lines are missing before line 4"]
    assert scan(b"".join(parts[2:])).notes == ["2 lines are missing before line 2"]


def test_a_whole_log_as_a_payload_is_a_payload_also_when_damaged() -> None:
    inner = b"".join(written([Line("inner", b"z")], log=b"another."))
    parts = written([Line("outer", inner), Line("next", b"")])
    assert scan(b"".join(parts)).lines == [Line("outer", inner), Line("next", b"")]
    for at in range(HEADER, len(parts[1])):
        broken = parts[1][:at] + bytes([parts[1][at] ^ 1]) + parts[1][at + 1 :]
        found = scan(parts[0] + broken + parts[2])
        assert found.lines == [Line("next", b"")]
        assert {damaged.label for damaged in found.damaged} >= {"outer"} or at < HEADER + 5


def test_nothing_of_a_damaged_line_is_trimmed_even_if_it_holds_a_header_of_this_log() -> None:
    header = Frames(KEY).head(LOG, 7, "", b"y" * 1000)
    parts = written([Line("outer", b"x" + header + b"x")])
    data = parts[0] + parts[1][:-1] + b"?"
    found = scan(data)
    assert (found.lines, found.damaged) == ([], [Damaged("outer", "its seal does not fit")])
    assert found.end == len(data)


def test_another_key_reads_nothing_and_says_so() -> None:
    data = b"".join(written(LINES))
    found = scan(data, key=b"j" * 32)
    assert (found.lines, found.intact, found.foreign) == ([], 0, True)


@given(
    lines=st.lists(st.builds(Line, st.text(max_size=5), st.binary(max_size=30)), min_size=1, max_size=6),
    cuts=st.lists(st.tuples(st.integers(0, 800), st.integers(0, 90), st.binary(max_size=40)), max_size=4),
)
def test_whatever_happens_to_the_bytes_nothing_is_read_that_was_not_written(
    lines: list[Line], cuts: list[tuple[int, int, bytes]]
) -> None:
    lines = [Line(f"{n} {line.label}", line.payload) for n, line in enumerate(lines)]
    data = b"".join(written(lines))
    for start, length, new in cuts:
        data = data[:start] + new + data[start + length :]
    found = scan(data)
    remaining = iter(lines)
    assert all(line in remaining for line in found.lines), "in the order in which they were written"
    assert found.end <= len(data)
    assert scan(data[: found.end]).lines == found.lines, "what is trimmed holds no line"


def test_what_does_not_fit_into_a_line_is_refused() -> None:
    with pytest.raises(ConfigError, match="too long for a log"):
        Frames(KEY).head(LOG, 1, "x" * (MOST_LABEL + 1), b"")
