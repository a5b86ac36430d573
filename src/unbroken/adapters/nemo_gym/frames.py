"""Lines of a log as bytes: each sealed, and found again behind a damaged one.

```
offset  size
     0     4  magic
     4     4  key       tells logs of another key from damaged ones
     8     8  log       random, of this file: a line of another file is not taken for one of this
    16     8  number    the file's lines are counted from 0; the first says that it is a log and is nobody's
    24     4  payload   its bytes
    28     2  label     its bytes
    30     4  check     CRC-32 of the label
    34     4  check     CRC-32 of all above
    38    16  seal      keyed, over all above, label and payload
    54        label, payload
```
Numbers are little-endian. The checks need no key and tell how far a header can be believed, so that the length of a
damaged line allocates nothing and its label can still be told. Only the seal says that a line is what was written.

Invariant: what `scan` gives was written by a holder of the key, into this file, and in this order.
Not promised: that whole lines missing at the end are noticed. Nothing in the file could tell.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from hmac import compare_digest

from unbroken.adapters.nemo_gym.keys import seal
from unbroken.errors import ConfigError

MAGIC = b"\xabUG\x01"
"""Not a part of any text in UTF-8. The last byte is the version of the format."""
MOST_LABEL = 0xFFFF
MOST_PAYLOAD = 0xFFFF_FFFF

_LABEL_CHECK = struct.Struct("<4s4s8sQIHI")
_HEADER = struct.Struct("<4s4s8sQIHII")
HEADER = _HEADER.size + 16
_WINDOW = 1 << 20
_STRIDE = 1 << 12

Read = Callable[[int, int], bytes]
"""Gives up to so many bytes (second) from an offset (first) on: fewer only where the file ends."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log. `label`: the session's or rollout's id; "" for one of the log itself."""

    label: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Damaged:
    """A line that cannot be used. `label` is "" where it cannot be read either."""

    label: str
    what: str


@dataclass(slots=True)
class Scanned:
    """What was found in a file of lines. `end` is where the next line belongs: what is behind it is torn."""

    log: bytes = b""
    lines: list[Line] = field(default_factory=list[Line])
    damaged: list[Damaged] = field(default_factory=list[Damaged])
    notes: list[str] = field(default_factory=list[str])
    intact: int = 0
    """How many lines were intact, with the first, which is nobody's."""
    number: int = 0
    """That of the next line."""
    end: int = 0
    foreign: bool = False
    """Whether a line is there that was sealed with another key."""


@dataclass(frozen=True, slots=True)
class _Header:
    key: bytes
    log: bytes
    number: int
    payload: int
    label: int
    label_check: int
    seal: bytes
    raw: bytes
    """What of it the seal covers."""

    @property
    def size(self) -> int:
        return HEADER + self.label + self.payload


class Frames:
    """Makes and reads lines that are sealed with one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._name = seal(key, b"which key")[:4]

    def first(self, log: bytes) -> bytes:
        """Return the line that begins the file `log` (8 random bytes)."""
        return self.head(log, 0, "", b"")

    def head(self, log: bytes, number: int, label: str, payload: bytes) -> bytes:
        """Return the bytes that precede `payload` in its line.

        Raises:
            ConfigError: label or payload is too long for a line.
        """
        name = label.encode("utf-8", "surrogatepass")
        if len(name) > MOST_LABEL or len(payload) > MOST_PAYLOAD:
            raise ConfigError(
                f"A line of {len(payload):,} bytes under a label of {len(name):,} bytes is too long for a log; "
                f"{MOST_PAYLOAD:,} and {MOST_LABEL:,} bytes are the most.",
                hint="Use shorter ids of sessions and rollouts, and keep large data outside of the session.",
            )
        checked = _LABEL_CHECK.pack(MAGIC, self._name, log, number, len(payload), len(name), zlib.crc32(name))
        raw = checked + zlib.crc32(checked).to_bytes(4, "little")
        return raw + seal(self._key, raw, name, payload) + name

    def scan(self, read: Read, size: int) -> Scanned:
        """Read all lines of a file of `size` bytes; what is damaged is reported and passed over."""
        return _Scan(self._key, self._name, _windowed(read), size).run()


def reader(descriptor: int) -> Read:
    """Return what reads from an open file."""
    return lambda offset, count: os.pread(descriptor, count, offset)


def _windowed(read: Read) -> Read:
    """Lines are mostly small: ask for them a megabyte at a time."""
    start, window = 0, b""

    def windowed(offset: int, count: int) -> bytes:
        nonlocal start, window
        if not start <= offset <= offset + count <= start + len(window):
            if count >= _WINDOW:
                return _all(read, offset, count)
            start, window = offset, _all(read, offset, _WINDOW)
        return window[offset - start : offset - start + count]

    return windowed


def _all(read: Read, offset: int, count: int) -> bytes:
    """One call may give only a part of what is there."""
    parts: list[bytes] = []
    while count and (part := read(offset, count)):
        parts.append(part)
        offset += len(part)
        count -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class _Scan:
    """One pass over a file."""

    def __init__(self, key: bytes, name: bytes, read: Read, size: int) -> None:
        self._key = key
        self._name = name
        self._read = read
        self._size = size
        self._found = Scanned()
        self._boundary = 0
        """Where a line should begin: behind the last one of which the length is known."""
        self._torn: tuple[int, str] | None = None
        """Where a line begins that does not end in the file, and its label."""
        self._passed = False
        """Whether something damaged lies behind the last intact line."""

    def run(self) -> Scanned:
        at: int | None = 0
        while at is not None and at < self._size:
            at = self._step(at)
        found = self._found
        found.end = self._size
        if self._torn is not None:
            found.end = self._torn[0]
        elif self._boundary < self._size and self._is_torn(self._boundary):
            found.end = self._boundary
        return found

    def _step(self, at: int) -> int | None:
        """Look at the place `at`; return where to look next."""
        header = self._header(at)
        if header is None:
            self._report_headless(at)
            return self._next_magic(at + 1)
        if header.key != self._name:
            self._found.foreign = True
        if at + header.size > self._size and not self._is_other(header):
            if at >= self._boundary:  # else it is a part of a damaged payload
                self._torn = self._torn or (at, self._label(at, header))
            return self._next_magic(at + 1)
        name = payload = b""
        # First what costs nothing: else a payload full of headers would be read once for each of them.
        intact = not self._is_other(header)
        if intact:
            name = self._read(at + HEADER, header.label)
            payload = self._read(at + HEADER + header.label, header.payload)
            intact = compare_digest(seal(self._key, header.raw, name, payload), header.seal)
        self._settle_torn()
        self._boundary = at + header.size
        if not intact:
            if at or header.number:
                self._report(self._label(at, header), self._why(header))
            else:
                self._note_first()
            return self._next_magic(at + 1)
        self._take(header, name, payload)
        return self._boundary

    def _is_other(self, header: _Header) -> bool:
        return header.key != self._name or bool(self._found.log and header.log != self._found.log)

    def _why(self, header: _Header) -> str:
        if header.key != self._name:
            return "it was sealed with another key"
        if self._is_other(header):
            return "it belongs to another log"
        return "its seal does not fit"

    def _take(self, header: _Header, name: bytes, payload: bytes) -> None:
        found = self._found
        label = name.decode("utf-8", "surrogatepass")
        if found.intact and header.number < found.number:
            self._report(
                label, f"it is out of order: line {header.number} stands behind line {found.number - 1}"
            )
            return
        if header.number > found.number and not self._passed:
            missing = header.number - found.number
            found.notes.append(
                f"{missing} {'line is' if missing == 1 else 'lines are'} missing before line {header.number}"
            )
        found.log = header.log
        found.intact += 1
        found.number = header.number + 1
        self._passed = False
        if header.number:
            found.lines.append(Line(label, payload))

    def _settle_torn(self) -> None:
        """A line follows: what seemed torn is damaged."""
        if self._torn is not None:
            self._report(self._torn[1], "it ends before its time")
            self._torn = None

    def _report_headless(self, at: int) -> None:
        """Report a line with a damaged header, if there is one: inside of a damaged line, the magic alone says little."""
        if at == 0:
            self._note_first()
        elif at == self._boundary:
            if not self._is_torn(at):
                self._report(self._label_at(at), "its header cannot be read")
        elif self._read(at + len(MAGIC), 12) == self._name + self._found.log and (
            label := self._label_at(at)
        ):
            self._report(label, "its header cannot be read")

    def _note_first(self) -> None:
        self._passed = True
        self._found.notes.append("the first line, which belongs to no session, is damaged")

    def _report(self, label: str, what: str) -> None:
        self._passed = True
        self._found.damaged.append(Damaged(label, what))

    def _header(self, at: int) -> _Header | None:
        raw = self._read(at, HEADER)
        if len(raw) < HEADER or not raw.startswith(MAGIC):
            return None
        _, key, log, number, payload, label, label_check, check = _HEADER.unpack_from(raw)
        if zlib.crc32(raw[: _LABEL_CHECK.size]) != check:
            return None
        return _Header(
            key, log, number, payload, label, label_check, raw[_HEADER.size :], raw[: _HEADER.size]
        )

    def _label(self, at: int, header: _Header) -> str:
        return self._checked_label(at, header.label, header.label_check)

    def _label_at(self, at: int) -> str:
        """Return the label of a line whose header is damaged, if the fields that tell it are not."""
        raw = self._read(at, HEADER)
        if len(raw) < HEADER:
            return ""
        *_, label, label_check, _ = _HEADER.unpack_from(raw)
        return self._checked_label(at, label, label_check)

    def _checked_label(self, at: int, length: int, check: int) -> str:
        name = self._read(at + HEADER, length)
        if len(name) < length or zlib.crc32(name) != check:
            return ""
        try:
            return name.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return ""

    def _is_torn(self, at: int) -> bool:
        """Whether no more than the beginning of a header follows `at`, or zeros: after a power loss the file may have
        its new size without its new content."""
        rest = self._size - at
        if rest < HEADER and MAGIC.startswith(self._read(at, min(rest, len(MAGIC)))):
            return True
        while at < self._size:
            if any(self._read(at, min(_STRIDE, self._size - at))):
                return False
            at += _STRIDE
        return True

    def _next_magic(self, at: int) -> int | None:
        while at + len(MAGIC) <= self._size:
            window = self._read(at, min(_STRIDE, self._size - at))
            found = window.find(MAGIC)
            if found >= 0:
                return at + found
            at += len(window) - len(MAGIC) + 1
        return None
