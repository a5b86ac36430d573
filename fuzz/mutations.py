"""Changes to whole objects, of the kind that goes deep: made on what the bytes mean, and checked anew.

Random bytes fail at the first check. So a mutation takes an object apart (JSON, MessagePack, the opcodes of a pickle,
fields of a header), changes it there, puts it together again, and makes the checks fit that need no key.

Everything is drawn from the generator that is given: the same seed gives the same bytes.
"""

from __future__ import annotations

import pickle
import pickletools
import struct
import zlib
from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias

import msgspec

from unbroken.errors import UnbrokenError
from unbroken.repo.seal import seal_json

Mutation: TypeAlias = Callable[[bytes, Random], bytes]

NUMBERS = (
    0, 1, -1, 2, 7, 8, 127, 128, 255, 256, 65535, 2**20, 2**30, 2**31 - 1, 2**31, 2**32, 2**40, 2**53,
    2**62, 2**63 - 1, -(2**31), -(2**63), 2**64 - 1, 10**30, 0.5, 1e308, -0.0,
)  # fmt: skip
TEXTS = (
    "", "a", "..", "/", "../../etc/passwd", "steps/../../x", "\0", "é", "\ud800", "%2e%2e", "a" * 300, "nan",
    "-inf", "0x" + "f" * 300, "b3:" + "0" * 64, "sha256:" + "f" * 64, "builtins:eval", "os:system", "numpy:load",
    "|O", "<f8", "|V0", "<M8[ns]", "(1000000000,)f8", "[[\"x\",\"<f4\"]]", "torch:Tensor", "~1", "model/~0~1",
)  # fmt: skip
WORDS = (
    "float", "int", "bytes", "list", "packed", "tuple", "set", "deque", "dict", "array", "objects", "view", "object",
    "coded", "function", "method", "partial", "class", "external", "opaque", "ref", "link", "scope",
)  # fmt: skip
MOST = 1 << 16
"""Bytes of an input. What is longer says nothing new, and takes its time."""


def of_bytes(data: bytes, random: Random) -> bytes:
    """Change bytes as they are: flip, drop, repeat, insert, cut."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4, 8))):
        at = random.randrange(len(changed) + 1)
        what = random.randrange(6)
        if what == 0 and at < len(changed):
            changed[at] ^= 1 << random.randrange(8)
        elif what == 1 and at < len(changed):
            changed[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
        elif what == 2:
            del changed[at : at + random.randrange(1, 9)]
        elif what == 3:
            changed[at:at] = random.randbytes(random.randrange(1, 9))
        elif what == 4:
            changed[at:at] = changed[at : at + random.randrange(1, 65)]
        else:
            kind, most = random.choice((("<H", 16), ("<I", 32), (">I", 32), ("<Q", 64)))
            number = random.choice((0, 1, 2**most - 1, 2 ** (most - 1), len(data), random.getrandbits(most)))
            changed[at : at + most // 8] = struct.pack(kind, number % 2**most)
    if random.random() < 0.05:
        del changed[random.randrange(len(changed) + 1) :]
    return bytes(changed[:MOST])


def of_lines(data: bytes, random: Random) -> bytes:
    """Change a text by its lines and numbers: drop, repeat, exchange."""
    if random.random() < 0.4:
        return of_bytes(data, random)
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    what = random.randrange(4)
    if what == 0:
        del lines[at]
    elif what == 1:
        lines.insert(random.randrange(len(lines)), lines[at])
    elif what == 2:
        key, colon, _ = lines[at].partition(b":")
        words = random.choice(
            (str(random.choice(NUMBERS)), random.choice(TEXTS), "null", "true", "[1, 2]", "{a: b}")
        )
        lines[at] = key + colon + b" " + words.encode("utf-8", "replace")
    else:
        other = random.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    return b"\n".join(lines)[:MOST]


def of_json(data: bytes, random: Random) -> bytes:
    """Change what a JSON text says."""
    try:
        tree = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return of_bytes(data, random)
    try:
        return msgspec.json.encode(changed_tree(tree, random))[:MOST]
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError, TypeError):
        return of_bytes(data, random)


def of_sealed(data: bytes, random: Random) -> bytes:
    """Change what a sealed record says, and seal it again; sometimes not."""
    changed = of_json(data, random)
    if random.random() < 0.1:
        return of_bytes(data, random)
    try:
        tree = msgspec.json.decode(changed)
        if isinstance(tree, dict):
            tree.pop("check", None)
            return seal_json(msgspec.json.encode(tree))
    except (msgspec.MsgspecError, UnbrokenError, RecursionError, ValueError):
        pass
    return changed


def of_msgpack(data: bytes, random: Random) -> bytes:
    """Change what MessagePack says."""
    if random.random() < 0.2:
        return of_bytes(data, random)
    try:
        return msgspec.msgpack.encode(changed_tree(msgspec.msgpack.decode(data), random))[:MOST]
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError, TypeError):
        return of_bytes(data, random)


def of_index(data: bytes, random: Random) -> bytes:
    """Change the index of a pack, and make its checksum fit."""
    head = struct.Struct("<8sHHI")
    if len(data) < head.size:
        return of_bytes(data, random)
    magic, version, flags, _ = head.unpack_from(data)
    body = of_msgpack(data[head.size :], random)
    if random.random() < 0.05:
        version = random.randrange(3)
    return head.pack(magic, version, flags, zlib.crc32(body)) + body


def of_pack(data: bytes, random: Random) -> bytes:
    """Change the header of an entry of a pack, and make its checksum fit; or any byte."""
    starts = [at for at in range(len(data)) if data.startswith(b"BLOB", at)]
    if not starts or random.random() < 0.4:
        return of_bytes(data, random)
    at, size = random.choice(starts), struct.calcsize("<4sBBHQQ32sI")
    head = bytearray(of_bytes(data[at + 4 : at + size], random)[: size - 4].ljust(size - 4, b"\0"))
    if random.random() < 0.7:
        head[:2] = data[at + 4 : at + 6]
    whole = b"BLOB" + bytes(head)
    return data[:at] + whole + struct.pack("<I", zlib.crc32(whole)) + data[at + size + 4 :]


def of_pickle(data: bytes, random: Random) -> bytes:
    """Change the opcodes of a pickle: drop, repeat, exchange and add some."""
    try:
        found = list(pickletools.genops(data))
    except Exception:  # noqa: BLE001 - what it cannot read is changed as bytes
        return of_bytes(data, random)
    ends = [at for _, _, at in found[1:]] + [len(data)]
    pieces = [data[at or 0 : end] for (_, _, at), end in zip(found, ends, strict=True)]
    for _ in range(random.randrange(1, 5)):
        at = random.randrange(len(pieces) + 1)
        what = random.randrange(5)
        if what == 0:
            pieces.insert(at, random.choice(OPCODES))
        elif what == 1 and pieces:
            pieces.insert(at, random.choice(pieces))
        elif what == 2 and at < len(pieces):
            del pieces[at]
        elif what == 3 and at < len(pieces):
            pieces[at] = of_bytes(pieces[at], random)
        elif at < len(pieces):
            pieces[at] = random.choice(OPCODES)
    changed = b"".join(pieces)
    return (changed if changed.endswith(b".") else changed + b".")[:MOST]


def _named(module: str, name: str) -> bytes:
    return pickle.SHORT_BINUNICODE + bytes([len(module)]) + module.encode() + (
        pickle.SHORT_BINUNICODE + bytes([len(name)]) + name.encode() + pickle.STACK_GLOBAL
    )  # fmt: skip


OPCODES: tuple[bytes, ...] = (
    *(bytes([n]) for n in b"(.01234Nl]}ad)tbRus\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94\x97\x98Qi"),
    b"cposix\nsystem\n", b"cbuiltins\neval\n", b"cbuiltins\ngetattr\n", b"cos\nsystem\n", b"csubprocess\nPopen\n",
    _named("builtins", "exec"), _named("builtins", "__import__"), _named("collections", "OrderedDict"),
    _named("collections", "deque"), _named("collections", "deque.__init__"), _named("fractions", "Fraction"),
    _named("numpy", "ndarray"), _named("numpy", "dtype"), _named("numpy._core.multiarray", "_reconstruct"),
    _named("numpy._core.numeric", "_frombuffer"), _named("numpy._core.multiarray", "scalar"), _named("os", "path.os.system"),
    b"\x8c\x02f8", b"\x8c\x01O", b"K\x00", b"K\x05", b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", b"J\xff\xff\xff\xff",
    b"h\x00", b"h\x01", b"j\xff\xff\xff\x7f", b"r\xff\xff\xff\x7f", b"q\x00", b"p99999999999\n", b"C\x04abcd", b"C\x00",
    b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x95\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x82\x01", b"\x96\x04\0\0\0\0\0\0\0abcd",
    b"(K\x03\x8c\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb", b"G\x7f\xf0\x00\x00\x00\x00\x00\x00", b"\x80\x05", b"\x80\xff",
)  # fmt: skip
"""Each has something to do with what a pickle can reach: names, calls, states, memory, buffers."""


def changed_tree(tree: Any, random: Random) -> Any:
    """Return plain values with a few of them changed, at places that are drawn."""
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        tree = _changed(tree, random, 0)
    return tree


def _changed(value: Any, random: Random, depth: int) -> Any:
    if isinstance(value, dict) and value and random.random() < 0.9:
        key = random.choice(list(value))
        what = random.random()
        if what < 0.08:
            return {k: v for k, v in value.items() if k != key}
        if what < 0.14:
            return {
                **value,
                random.choice(("", "a", "v", "kv", "b", "$", "id", "to", "in", "s", "st")): _fresh(
                    random, depth
                ),
            }
        return {**value, key: _changed(value[key], random, depth + 1)}
    if isinstance(value, list) and value and random.random() < 0.9:
        at = random.randrange(len(value))
        what = random.random()
        if what < 0.1:
            return value[:at] + value[at + 1 :]
        if what < 0.2:
            return [*value[:at], value[at], *value[at:]]
        return [*value[:at], _changed(value[at], random, depth + 1), *value[at + 1 :]]
    if isinstance(value, bytes) and random.random() < 0.7:
        return of_bytes(value, random)
    if isinstance(value, str) and value and random.random() < 0.4:
        at = random.randrange(len(value))
        return value[:at] + random.choice(TEXTS) + value[at + random.randrange(3) :]
    if isinstance(value, int) and random.random() < 0.5:
        return value + random.choice((-1, 1, 2**31, 2**63))
    return _fresh(random, depth)


def _fresh(random: Random, depth: int) -> Any:
    what = random.randrange(8)
    if what == 0:
        return random.choice(NUMBERS)
    if what == 1:
        return random.choice(TEXTS[:8] + TEXTS[9:])
    if what == 2:
        return random.choice((None, True, False, [], {}))
    if what == 3 and depth < 30:
        return [_fresh(random, depth + 1) for _ in range(random.randrange(4))]
    if what == 4:
        nested: Any = 1
        for _ in range(random.choice((3, 40, 300, 900))):
            nested = [nested] if random.random() < 0.5 else {"$": "list", "v": [nested]}
        return nested
    return _node(random, depth)


def _node(random: Random, depth: int) -> dict[str, Any]:
    """Return something that looks like a node of a state document."""

    def child() -> Any:
        return _fresh(random, depth + 1) if depth < 20 else 1

    def number() -> int:
        return int(random.choice((0, 0, 1, 1, 2, 3, -1, 8, 2**31, 2**62)))

    node: dict[str, Any] = {"$": random.choice(WORDS)}
    parts: dict[str, Callable[[], Any]] = {
        "v": lambda: random.choice((random.choice(TEXTS[:8] + TEXTS[10:]), [child()], {"a": child()}, child())),
        "id": number, "b": number, "rows": number, "off": number, "to": number, "n": number, "m": number,
        "d": lambda: random.choice(("<f8", "|u1", "<i4", "|b1", "|O", "<M8[ns]", random.choice(TEXTS[10:]))),
        "s": lambda: [number() for _ in range(random.randrange(4))],
        "st": lambda: [number() for _ in range(random.randrange(4))],
        "of": child, "f": child, "k": lambda: random.choice(("tensor", "memory", "date", "path", "enum", "x", child())),
        "a": lambda: {"x": child()}, "x": lambda: {"x": child()}, "kv": lambda: [[child(), child()]],
        "c": lambda: random.choice(("builtins:object", "collections:OrderedDict", random.choice(TEXTS[10:]))),
        "q": lambda: random.choice(TEXTS[10:]), "t": lambda: random.choice("fix"), "in": lambda: "model",
        "p": lambda: "0", "roots": lambda: {"r": child()}, "frozen": lambda: True, "mutable": lambda: True,
        "data": lambda: "AAAAAAAAAAA=", "blobs": lambda: [number()],
    }  # fmt: skip
    for key in random.sample(sorted(parts), random.randrange(1, 7)):
        node[key] = parts[key]()
    return node
