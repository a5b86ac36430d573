"""The words of a state document.

A state is a tree of plain values (None, bool, 64-bit int, finite float, str) and of the nodes below.
A mutable object is written once, at the first place where it is met; every other place holds a `Ref`
(same component, by number) or a `Link` (another component, by place). Nodes are msgspec structs, so
decoding a document validates its shape: a document that uses any other word is refused.

Node attributes are short because they are the keys in the file; docs/format.md explains each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias, Union

import msgspec

INLINE_BYTES = 1024
"""Arrays up to this many bytes travel inside the document; larger ones are blobs."""


class Node(msgspec.Struct, tag_field="$", omit_defaults=True, gc=False, kw_only=True):
    """Base of all nodes. Not frozen: a node gets its `id` when its object is met again."""


class Identity(Node):
    """A node whose object has an identity: it may be referred to from other places."""

    id: int = 0


class Float(Node, tag="float", kw_only=True):
    """NaN and infinities, which JSON cannot hold. `v`: ``inf``, ``-inf``, ``nan`` or the 16 hex digits of the bits."""

    v: str


class Int(Node, tag="int", kw_only=True):
    """An integer beyond 64 bits, as a hexadecimal literal."""

    v: str


class Bytes(Identity, tag="bytes", kw_only=True):
    """`bytes`, or `bytearray` when `mutable`; inline as `v`, or as blob `b`."""

    v: bytes = b""
    b: int = -1
    mutable: bool = False


class List(Identity, tag="list", kw_only=True):
    """A list; `c` names a subclass, `a` holds a subclass's attributes."""

    v: list[Value]
    c: str = ""
    a: dict[str, Value] = {}


class Packed(Identity, tag="packed", kw_only=True):
    """A long list of floats (`t` = "f") or of 64-bit ints ("i"), as one little-endian array."""

    t: str
    n: int
    b: int = -1
    data: bytes = b""


class Tuple(Node, tag="tuple", kw_only=True):
    """A tuple; `c` names a subclass (a named tuple), `a` holds attributes of its own."""

    v: list[Value]
    c: str = ""
    a: dict[str, Value] = {}


class Set(Identity, tag="set", kw_only=True):
    """A set or frozenset, its members sorted by what they hold. Iteration order does not come back."""

    v: list[Value]
    frozen: bool = False
    c: str = ""
    a: dict[str, Value] = {}


class Deque(Identity, tag="deque", kw_only=True):
    v: list[Value]
    m: int | None = None
    c: str = ""
    a: dict[str, Value] = {}


class Dict(Identity, tag="dict", kw_only=True):
    """A dict in its own order: `v` if all keys are strings, else `kv` as pairs."""

    v: dict[str, Value] | None = None
    kv: list[tuple[Value, Value]] | None = None
    c: str = ""
    f: Value = None
    a: dict[str, Value] = {}


class Array(Identity, tag="array", kw_only=True):
    """A numpy array that owns its memory. `d` dtype, `s` shape, `o` memory order.

    `rows` >= 0: only so many leading rows were ever written (a ring buffer that is not full); the
    others are left as the freshly built array has them. The bytes are blob `b`, or `data`.
    """

    d: str
    s: tuple[int, ...]
    b: int = -1
    data: bytes = b""
    o: str = "C"
    rows: int = -1


class ObjectArray(Identity, tag="objects", kw_only=True):
    """A numpy array of Python objects, its elements in C order."""

    s: tuple[int, ...]
    v: list[Value]
    rows: int = -1


class View(Identity, tag="view", kw_only=True):
    """A numpy array in memory that it does not own.

    If the owner is in the state as well, `of` is that array, with the byte offset and the strides into
    it. If not (a few rows of something huge), the contents are here, in C order: blob `b`, or `data`.
    """

    d: str
    s: tuple[int, ...]
    of: Value = None
    off: int = 0
    st: tuple[int, ...] = ()
    b: int = -1
    data: bytes = b""


class Object(Identity, tag="object", kw_only=True):
    """An object of class `c`: attributes `a`, slots `s`, and what its captor adds, `x`."""

    c: str
    a: dict[str, Value] = {}
    s: dict[str, Value] = {}
    x: dict[str, Value] = {}


class Coded(Identity, tag="coded", kw_only=True):
    """A value that the codec named `k` writes and reads; `c` names its class where it matters."""

    k: str
    v: Value = None
    c: str = ""


class Function(Identity, tag="function", kw_only=True):
    """A function, never rebuilt from the document: `q` name, `h` what `code_hash` says of its code, `cl` closure cells,
    `a` its own attributes and those of its default arguments that can change."""

    q: str
    h: str = ""
    cl: dict[str, Value] = {}
    of: Value = None
    a: dict[str, Value] = {}


class Method(Node, tag="method", kw_only=True):
    """A bound method: attribute `n` of the object `of`."""

    n: str
    of: Value


class Partial(Identity, tag="partial", kw_only=True):
    f: Value
    a: Value
    k: Value


class Class(Node, tag="class", kw_only=True):
    """A class, a module or another constant of the program, by name; never imported."""

    q: str


class External(Identity, tag="external", kw_only=True):
    """Kept from the freshly built object, because it cannot travel (a socket, a lock, a window)."""

    c: str


class Opaque(Identity, tag="opaque", kw_only=True):
    """A pickle. Loaded only from a checkpoint that is trusted."""

    c: str
    b: int = -1
    data: bytes = b""


class Ref(Node, tag="ref", kw_only=True):
    """The object whose node in this component has this `id`."""

    to: int


class Link(Node, tag="link", kw_only=True):
    """The object at this place of another component."""

    to: str
    in_: str = msgspec.field(name="in")


class Scope(Node, tag="scope", kw_only=True):
    """The state of another process (an environment worker), with its own numbers.

    `blobs[i]` is the index, in the component around it, of the scope's blob i.
    """

    p: str
    roots: dict[str, Value]
    blobs: list[int] = []


AnyNode: TypeAlias = Union[
    Float, Int, Bytes, List, Packed, Tuple, Set, Deque, Dict, Array, ObjectArray, View, Object, Coded,
    Function, Method, Partial, Class, External, Opaque, Ref, Link, Scope,
]  # fmt: skip
Value: TypeAlias = Union[None, bool, int, float, str, AnyNode]

PLAIN = frozenset({type(None), bool, int, float, str})
"""Types that stand in a document as themselves."""


def children(node: AnyNode) -> Iterator[tuple[str, Value]]:
    """Yield (key, value) for everything below `node`, in the order in which it was walked.

    The keys are the ones that places are made of; the walker uses the same.
    """
    if isinstance(node, (List, Tuple, Set, Deque)):
        yield from ((str(i), v) for i, v in enumerate(node.v))
        yield from node.a.items()
    elif isinstance(node, ObjectArray):
        yield from ((str(i), v) for i, v in enumerate(node.v))
    elif isinstance(node, Dict):
        yield "default_factory", node.f
        if node.v is not None:
            yield from node.v.items()
        for i, (k, v) in enumerate(node.kv or ()):
            yield f"#{i}.key", k
            yield f"#{i}", v
        yield from node.a.items()
    elif isinstance(node, Object):
        yield from node.a.items()
        yield from node.s.items()
        yield from ((f"<{k}>", v) for k, v in node.x.items())
    elif isinstance(node, Coded):
        yield "value", node.v
    elif isinstance(node, View):
        yield "<base>", node.of
    elif isinstance(node, Function):
        yield "__self__", node.of
        yield from ((f"<{k}>", v) for k, v in node.cl.items())
        yield from node.a.items()
    elif isinstance(node, Method):
        yield "__self__", node.of
    elif isinstance(node, Partial):
        yield "func", node.f
        yield "args", node.a
        yield "keywords", node.k
    elif isinstance(node, Scope):
        yield from node.roots.items()


def same(a: object, b: object) -> bool:
    """Whether two values need no write: the same object, or the same plain bits."""
    if a is b:
        return True
    if type(a) is not type(b) or type(a) not in PLAIN:
        return False
    return repr(a) == repr(b) if type(a) is float else a == b


def class_name(cls: type) -> str:
    """Return the name under which a class stands in documents: ``module:Qualname``."""
    # Some classes of C extensions say no module.
    return f"{getattr(cls, '__module__', 'builtins')}:{cls.__qualname__}"


def escape(key: str) -> str:
    """Escape a key for use in a place (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1") if "~" in key or "/" in key else key


def unescape(key: str) -> str:
    """Undo `escape`."""
    return key.replace("~1", "/").replace("~0", "~")
