"""Documents: one component's state tree as JSON or MessagePack.

A document holds the tree and, instead of large bytes, the digests of their chunks; its arrays and
opaque values count into that table. Decoding is typed: only the words of `state.nodes` are accepted,
and nothing is looked up, imported or executed. Whether the tree makes sense (references, shapes) is
the planner's question.

JSON is the default, since a person can read it. A decoder raises only `CorruptObject` and
`UnsupportedFormat`, whatever the bytes.
"""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, TypeAlias, cast

import msgspec

from unbroken.errors import CorruptObject, NotCapturable
from unbroken.format import migrations
from unbroken.format.buffers import Buffer
from unbroken.format.chunks import MAX_CHUNKS, root_size
from unbroken.format.digest import DigestField
from unbroken.format.manifest import DocumentFormat
from unbroken.format.records import Count
from unbroken.format.wire import FORMAT_VERSION, check_version
from unbroken.state.nodes import Value
from unbroken.state.snapshot import Component
from unbroken.types import Digest

CHUNK = 1 << 20
"""Bytes of a chunk, unless a blob says otherwise (those of rings hold whole rows). Chunks of one blob have
one size, so that an unchanged prefix or range of rows is stored once."""

MAX_CHUNK = 1 << 30

INDENT_LIMIT = 1 << 20
"""JSON documents up to this many bytes are indented for people; larger ones are read by programs."""

DOCUMENT_MAGIC = "unbroken document"


class BlobRef(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The bytes of one array: their number, the bytes of a chunk (the last is shorter), and the chunks.

    Few chunks are named here, many by the root of their list (see `chunks`): then `chunks` is empty.
    """

    size: Count
    chunks: list[DigestField] = []
    chunk: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHUNK)] = CHUNK
    tree: DigestField | None = None

    def __post_init__(self) -> None:
        # Readers allocate by `size`: it cannot promise more than the chunks that are named.
        if len(self.chunks) != (0 if self.tree is not None else self.count) or (
            self.tree is not None and not self.size
        ):
            raise ValueError(f"{len(self.chunks)} chunks do not make {self.size} bytes")
        if self.count > MAX_CHUNKS:
            raise ValueError(f"an array of {self.size} bytes in chunks of {self.chunk} is too long")

    @property
    def count(self) -> int:
        """How many chunks there are."""
        return -(-self.size // self.chunk)

    def size_of(self, i: int) -> int:
        """Return the bytes of chunk `i`."""
        return min(self.chunk, self.size - i * self.chunk)

    def named(self) -> Iterator[tuple[Digest, int]]:
        """Yield digest and size of each blob that is named here: of the chunks, or of the list's root."""
        if self.tree is not None:
            yield self.tree, root_size(self.count)
        for i, digest in enumerate(self.chunks):
            yield digest, self.size_of(i)


class Document(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a document holds. The keys are explained in docs/format.md."""

    magic: str
    version: int
    component: str
    escaped: bool = False
    tensors: dict[str, dict[str, str]] = {}
    blobs: list[BlobRef] = []
    roots: dict[str, Value]


class _Header(msgspec.Struct):
    version: int = FORMAT_VERSION


_Plain: TypeAlias = (
    "None | bool | int | float | str | bytes | list[_Plain] | tuple[_Plain, ...] | dict[str, _Plain]"
)

_JSON = msgspec.json.Decoder(Document)
_MSGPACK = msgspec.msgpack.Decoder(Document)


def chunks_of(blob: Buffer, chunk: int = CHUNK) -> Iterator[memoryview]:
    """Yield the chunks of a blob, without copying.

    >>> [len(chunk) for chunk in chunks_of(bytes(CHUNK + 5))]
    [1048576, 5]
    """
    view = memoryview(blob).cast("B")
    for start in range(0, view.nbytes, chunk):
        yield view[start : start + chunk]


def encode(component: Component, blobs: Sequence[BlobRef], fmt: DocumentFormat = "json") -> bytes:
    """Return the document of `component`, whose blob i is described by ``blobs[i]``."""
    document = Document(
        magic=DOCUMENT_MAGIC,
        version=FORMAT_VERSION,
        component=component.name,
        tensors=component.tensors,
        blobs=list(blobs),
        roots=component.roots,
    )
    try:
        try:
            return _write(document, fmt)
        except UnicodeEncodeError:
            # File names can hold bytes that are no UTF-8; Python gives them as lone surrogates.
            document.escaped = True
            return _write(_map_strings(_builtins(document, fmt), _escape), fmt)
    except RecursionError as error:
        raise NotCapturable(
            f"The state of {component.name} is nested too deeply to be written.",
            hint="Keep long chains of objects in a list.",
            place=next(iter(component.roots), ""),
        ) from error


def decode(data: bytes, fmt: DocumentFormat = "json", *, key: str = "") -> Document:
    """Return the document in `data`; `key` is its name, for the message."""
    where = key or "A document"
    try:
        try:
            document = _read(data, fmt)
        except RecursionError:
            # The caller's own depth counts; a fresh thread reads whatever any thread has written.
            document = _in_fresh_thread(data, fmt)
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        check_version(_version(data, fmt), key=key)
        raise CorruptObject(f"{where} is not readable: {error}.", key=key) from error
    check_version(document.version, key=key)
    if document.magic != DOCUMENT_MAGIC:
        raise CorruptObject(f"{where} is not a document: its magic is {document.magic[:40]!r}.", key=key)
    return document


def _write(document: object, fmt: DocumentFormat) -> bytes:
    if fmt == "msgpack":
        return msgspec.msgpack.encode(document)
    data = msgspec.json.encode(document)
    return msgspec.json.format(data, indent=1) if len(data) <= INDENT_LIMIT else data


def _read(data: bytes, fmt: DocumentFormat) -> Document:
    with _collector_paused():
        if migrations.MIGRATIONS and migrations.is_older(version := _version(data, fmt)):
            return _read_older(data, fmt, version)
        document = _MSGPACK.decode(data) if fmt == "msgpack" else _JSON.decode(data)
        if document.escaped:
            plain = _map_strings(_builtins(document, fmt), _unescape)
            document = msgspec.convert(plain, Document, builtin_types=_native(fmt))
    return document


def _read_older(data: bytes, fmt: DocumentFormat, version: int) -> Document:
    plain: _Plain = msgspec.msgpack.decode(data) if fmt == "msgpack" else msgspec.json.decode(data)
    if not isinstance(plain, dict):
        raise TypeError("it is no object")
    if plain.pop("escaped", False):
        plain = cast("dict[str, _Plain]", _map_strings(plain, _unescape))
    return msgspec.convert(migrations.document(plain, version=version), Document, builtin_types=_native(fmt))


def _in_fresh_thread(data: bytes, fmt: DocumentFormat) -> Document:
    outcome: list[Document | BaseException] = []

    def read() -> None:
        try:
            outcome.append(_read(data, fmt))
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked
            outcome.append(error)

    thread = threading.Thread(target=read, name="unbroken-decode", daemon=True)
    thread.start()
    thread.join()
    (result,) = outcome
    if isinstance(result, BaseException):
        raise result
    return result


def _version(data: bytes, fmt: DocumentFormat) -> int:
    decoder = msgspec.msgpack.decode if fmt == "msgpack" else msgspec.json.decode
    try:
        return decoder(data, type=_Header).version
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return FORMAT_VERSION


@contextmanager
def _collector_paused() -> Generator[None, None, None]:
    """A collection in the middle of a bulk decode walks all new objects again and again: up to 10x slower."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_SPECIAL = re.compile("[\\\\\ud800-\udfff]")
_ESCAPED = re.compile(r"\\(\\|u[0-9a-f]{4})")


def _builtins(document: Document, fmt: DocumentFormat) -> _Plain:
    plain: _Plain = msgspec.to_builtins(document, builtin_types=_native(fmt))
    return plain


def _native(fmt: DocumentFormat) -> tuple[type, ...]:
    """Types that the format holds as they are; JSON has base64 in the place of bytes."""
    return (bytes,) if fmt == "msgpack" else ()


def _escape(text: str) -> str:
    return _SPECIAL.sub(lambda m: "\\\\" if m[0] == "\\" else f"\\u{ord(m[0]):04x}", text)


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda m: "\\" if m[1] == "\\" else chr(int(m[1][1:], 16)), text)


def _map_strings(value: _Plain, change: Callable[[str], str]) -> _Plain:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, (list, tuple)):
        return [_map_strings(item, change) for item in value]
    if isinstance(value, dict):
        return {change(key): _map_strings(item, change) for key, item in value.items()}
    return value
