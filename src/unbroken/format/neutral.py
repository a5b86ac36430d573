"""`neutral.json`: what an export for other programs holds, in words of no framework.

An export is a directory: this document, the weights in files of safetensors, and each column of a replay
buffer as a file of numpy. `docs/neutral.md` is its specification, `schema/unbroken-neutral-1.json` its
JSON Schema, which is made from the records here.

A document of a later minor change may have more keys; they are passed over. What an older reader must not
pass over raises the number in `version`.

Not promised: to go on exactly from such a directory. It holds what carries over to other programs, and
`left` says what does not.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Literal, TypeAlias, Union

import msgspec

from unbroken.errors import CorruptObject, UnsupportedFormat

VERSION = 1
NAME = "neutral.json"
MAGIC: Final = "unbroken-neutral"

FileField: TypeAlias = Annotated[
    str, msgspec.Meta(pattern=r"^[A-Za-z0-9_@-][A-Za-z0-9_.@-]*(/[A-Za-z0-9_@-][A-Za-z0-9_.@-]*){0,3}$(?!\n)")
]
"""The path of a file below the directory; it cannot leave it."""
Size: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Dimension: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
Sha256: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
Bounds: TypeAlias = Literal["none", "clip", "scale", "scale-clip"]
Number: TypeAlias = Union[int, float, Literal["inf", "-inf", "nan"]]
"""JSON has no infinities."""


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all parts of the document."""


class File(Part, frozen=True, kw_only=True):
    """A file of the directory."""

    bytes: Size
    sha256: Sha256


class Source(Part, frozen=True, kw_only=True):
    """Where all of it comes from."""

    run: str
    step: Size
    segment: Size = 0
    framework: str = ""
    """The package that trained it, as it is imported; empty: a loop written by hand."""
    algorithm: str = ""
    """The class of the algorithm, `module:Name`; empty where there is none."""
    written: float = 0.0
    """When the checkpoint was saved, in seconds since 1970."""
    versions: dict[str, str] = {}


class Space(Part, frozen=True, kw_only=True):
    """What observations or actions are. `low` and `high` are one number where all elements have the same."""

    kind: Literal["box", "discrete", "multi-discrete", "multi-binary", "dict", "tuple", "other"]
    dtype: str = ""
    shape: list[Dimension] = []
    low: Union[Number, list[Number], None] = None
    """In C order, one an element."""
    high: Union[Number, list[Number], None] = None
    sizes: list[int] = []
    """Of a discrete space how many values there are; of a multi-discrete one, how many each element has."""
    start: int = 0
    spaces: dict[str, Space] = {}
    class_: str = msgspec.field(name="class", default="")


class Tensor(Part, frozen=True, kw_only=True):
    """A tensor in a file of weights; it stands there under the same name."""

    dtype: str
    shape: list[Dimension]


class Step(Part, frozen=True, kw_only=True):
    """One operation on a batch; its first dimension is the batch's. Fields are those of its `op` only."""

    op: Literal[
        "float", "divide", "one_hot", "flatten", "linear", "conv2d", "relu", "tanh", "sigmoid", "elu",
        "leaky_relu", "silu", "gelu", "hardtanh", "softplus", "layer_norm", "batch_norm", "first_half",
        "mean_of_groups",
    ]  # fmt: skip
    weight: str | None = None
    """The name of a tensor of the network, as is `bias`, `mean` and `var`."""
    bias: str | None = None
    mean: str | None = None
    var: str | None = None
    by: float | None = None
    sizes: list[int] | None = None
    stride: list[int] | None = None
    padding: list[int] | None = None
    dilation: list[int] | None = None
    groups: int | None = None
    shape: list[Dimension] | None = None
    epsilon: float | None = None
    alpha: float | None = None
    low: float | None = None
    high: float | None = None
    approximate: str | None = None


class Network(Part, frozen=True, kw_only=True):
    """A module with weights."""

    name: str
    place: str
    """Where it stood in the program."""
    file: FileField
    tensors: dict[str, Tensor]
    chains: dict[str, list[Step]] = {}
    """Parts of it that are a chain of known operations, by the name of the part; empty name: all of it."""
    class_: str = msgspec.field(name="class", default="")


class Path(Part, frozen=True, kw_only=True):
    """A way through a network, from an observation on."""

    network: str
    steps: list[Step]


class Head(Part, frozen=True, kw_only=True):
    """What makes an action of the last step's output, without chance.

    `argmax`: the index of the largest, plus the space's start. `argmax_each`: the same in each of the space's
    `sizes`. `threshold`: sigmoid, rounded. `continuous`: the numbers themselves; with `bounds` = `clip` cut to the space's
    low and high, with `scale` taken from -1…1 to them, with `scale-clip` that, and then cut.
    """

    kind: Literal["argmax", "argmax_each", "threshold", "continuous"]
    bounds: Bounds = "none"
    softmax: bool = False
    """The largest is looked for among the softmax of the output: where two of these are equal, the first counts."""


class Acting(Path, frozen=True, kw_only=True):
    """How the trained policy chooses an action without chance."""

    head: Head
    normalizers: dict[str, str] = {}
    """Key of the observation (empty: all of it) -> the normalizer that it goes through first."""


class Normalizer(Part, frozen=True, kw_only=True):
    """Running statistics. `mean`, `var` name tensors in `file`.

    Observations: clip((x - mean) / sqrt(var + epsilon), -clip, clip). Rewards: clip(x / sqrt(var + epsilon), -clip, clip).
    """

    name: str
    place: str
    file: FileField
    mean: str
    var: str
    count: Number
    shape: list[Dimension]
    role: Literal["observation", "reward", ""] = ""
    key: str = ""
    """Of a dict of observations the one it is for."""
    epsilon: float | None = None
    clip: Number | None = None
    gamma: float | None = None
    active: bool = True
    """False: statistics are kept, and not applied."""


class Column(Part, frozen=True, kw_only=True):
    """One column of a replay buffer: an array, whose first dimension is time."""

    name: str
    """What the program calls it."""
    file: FileField
    dtype: str
    shape: list[Dimension]
    role: str = ""
    """obs, next_obs, actions, rewards, terminated, truncated, dones; empty: another one."""
    key: str = ""
    """Of a dict of arrays the one it is for."""


class Replay(Part, frozen=True, kw_only=True):
    """A replay buffer. Row i of every column belongs to the same moment."""

    name: str
    place: str
    rows: Size
    columns: list[Column]
    order: Literal["oldest-first", "as-stored"] = "oldest-first"
    environments: Size = 0
    """So many environments are the second dimension; 0: there is no such dimension."""
    capacity: Size = 0
    position: Size = 0
    """Where in the program's buffer the next row goes."""
    class_: str = msgspec.field(name="class", default="")


class Left(Part, frozen=True, kw_only=True):
    """Something of the checkpoint that is not here."""

    what: str
    why: str


class Neutral(Part, frozen=True, kw_only=True):
    """The whole document."""

    format: Literal["unbroken-neutral"] = MAGIC
    version: int = VERSION
    source: Source
    files: dict[FileField, File] = {}
    observation_space: Space | None = None
    action_space: Space | None = None
    networks: list[Network] = []
    act: Acting | None = None
    value: Path | None = None
    why_no_act: str = ""
    normalizers: list[Normalizer] = []
    replay: list[Replay] = []
    left: list[Left] = []


class _Header(msgspec.Struct):
    format: str = ""
    version: int = 0


def number(value: float) -> Number:
    """Return a number as JSON can hold it.

    >>> number(1.5), number(float("-inf"))
    (1.5, '-inf')
    """
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def encode(document: Neutral) -> bytes:
    """Return the bytes of `neutral.json`."""
    data = msgspec.json.encode(_always(document))
    return msgspec.json.format(data, indent=2) + b"\n"


def _always(document: Neutral) -> dict[str, Any]:
    """The two keys by which a file is known are never left out."""
    return {"format": document.format, "version": document.version, **msgspec.to_builtins(document)}


def decode(data: bytes, *, where: str = NAME) -> Neutral:
    """Read a document, and check that it agrees with itself.

    Raises:
        CorruptObject: it is no such document, or contradicts itself.
        UnsupportedFormat: its version is newer than this package's.
    """
    try:
        header = msgspec.json.decode(data, type=_Header)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _damaged(where, f"{error}") from error
    if header.format != MAGIC:
        raise _damaged(where, f"its format is {header.format[:40]!r}, not {MAGIC!r}")
    if header.version > VERSION:
        raise UnsupportedFormat(
            f"{where} has version {header.version}; this Unbroken reads up to {VERSION}.",
            hint="Upgrade unbroken.",
        )
    try:
        document = msgspec.json.decode(data, type=Neutral)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _damaged(where, f"{error}") from error
    _check(document, where)
    return document


def _check(document: Neutral, where: str) -> None:
    """Raise CorruptObject if a part names something that is not there."""
    networks = {network.name: network for network in document.networks}
    normalizers = {normalizer.name for normalizer in document.normalizers}
    used = [
        *(network.file for network in document.networks),
        *(normalizer.file for normalizer in document.normalizers),
        *(column.file for replay in document.replay for column in replay.columns),
    ]
    for file in used:
        if file not in document.files:
            raise _damaged(where, f"it names the file {file}, and not its digest")
    ways = [(network, steps) for network in document.networks for steps in network.chains.values()]
    for path in (document.act, document.value):
        if path is not None:
            if path.network not in networks:
                raise _damaged(where, f"a path goes through {path.network[:40]!r}, which is no network")
            ways.append((networks[path.network], path.steps))
    for network, steps in ways:
        for step in steps:
            for name in (step.weight, step.bias, step.mean, step.var):
                if name is not None and name not in network.tensors:
                    raise _damaged(where, f"{network.name} has no tensor {name[:80]!r}")
    if document.act is not None and not normalizers.issuperset(document.act.normalizers.values()):
        raise _damaged(where, "a path goes through a normalizer that is not there")
    for replay in document.replay:
        for column in replay.columns:
            if column.shape[:1] != [replay.rows]:
                raise _damaged(where, f"the column {column.name[:40]!r} has not {replay.rows} rows")
            if replay.environments and column.shape[1:2] != [replay.environments]:
                raise _damaged(
                    where, f"the column {column.name[:40]!r} is not of {replay.environments} environments"
                )


def _damaged(where: str, why: str) -> CorruptObject:
    return CorruptObject(
        f"{where} is no document of an export: {why}.", hint="Export the run again.", key=where
    )


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the document."""
    made = msgspec.json.schema(Neutral)
    made["$defs"]["Neutral"]["required"] = ["format", "version", "source"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": MAGIC, **made}
