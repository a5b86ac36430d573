"""Generators of numpy and of Python's `random`: every bit of their state, in place, restored last.

A `Generator` is written as its bit generator, so that two generators on one stream stay on one stream;
a `RandomState` adds the Gaussian it keeps in reserve. A bit generator carries its `SeedSequence` with the
number of children already spawned: a later `spawn()` then gives the children it would have given.

Everything is decoded and tried on a scratch generator while planning: a forged state is refused before
a live generator is touched.

Under numpy 1 nobody can give a bit generator another seed sequence: where it differs, the generator is
built anew instead of restored in place.

Not promised: a user's own subclass of BitGenerator (refused unless it has numpy's state dict).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random.bit_generator import BitGenerator, SeedSequence

from unbroken.errors import NotCapturable
from unbroken.state.nodes import Array, Dict, Float, Int, List, Tuple, Value, class_name
from unbroken.state.policy import Phase, Policy
from unbroken.types import MISSING

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

BIT_GENERATORS: dict[str, type[BitGenerator]] = {
    kind.__name__: kind
    for kind in (np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64)
}
"""What a checkpoint may build, by the name that stands in numpy's own state dict."""


class Malformed(ValueError):
    """The document does not hold what a generator needs. Turned into a refusal by `plan`."""


def write_plain(value: Any, walk: Walk) -> Value:
    """Return the node of a generator's state: dicts, lists, tuples, numbers, text and numeric arrays.

    Not through `walk.child`: numpy makes these values anew at each call, they have no identity to keep.
    """
    if isinstance(value, dict):
        return Dict(v={str(key): write_plain(item, walk) for key, item in value.items()})
    if isinstance(value, np.ndarray):
        little = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"), copy=False)
        b, data = walk.pack(little)
        return Array(d=little.dtype.str, s=little.shape, b=b, data=data)
    if isinstance(value, tuple):
        return Tuple(v=[write_plain(item, walk) for item in value])
    if isinstance(value, list):
        return List(v=[write_plain(item, walk) for item in value])
    if isinstance(value, np.generic):
        return write_plain(value.item(), walk)
    return walk.here(value)  # None, bool, int of any size, float, str


def read_plain(node: Value, graft: Graft) -> Any:
    """Return the value of a node that `write_plain` made. Raises Malformed for any other."""
    if isinstance(node, Dict) and node.v is not None:
        return {key: read_plain(item, graft) for key, item in node.v.items()}
    if isinstance(node, Array):
        return _read_array(node, graft)
    if isinstance(node, Tuple):
        return tuple(read_plain(item, graft) for item in node.v)
    if isinstance(node, List):
        return [read_plain(item, graft) for item in node.v]
    if node is None or isinstance(node, (bool, int, float, str, Int, Float)):
        return graft.here(node)
    raise Malformed(f"a {type(node).__name__.lower()} has no place in the state of a generator")


def _read_array(node: Array, graft: Graft) -> Any:
    if node.d not in ("<u4", "<u8", "<i8", "<i4"):
        raise Malformed(f"an array of {node.d!r} has no place in the state of a generator")
    blob = graft.bytes_of(node.b, node.data)
    if blob.nbytes != np.dtype(node.d).itemsize * int(np.prod(node.s, dtype=np.int64)):
        raise Malformed(f"an array of shape {node.s} has {blob.nbytes} bytes")
    return blob.view(node.d).reshape(node.s).astype(np.dtype(node.d).newbyteorder("="))


def _read_sequence(node: Value, graft: Graft) -> SeedSequence | None:
    if node is None:
        return None
    state = read_plain(node, graft)
    if not isinstance(state, dict) or not state.keys() <= {
        "entropy", "spawn_key", "pool_size", "n_children_spawned"
    }:  # fmt: skip
        raise Malformed("a seed sequence needs entropy, spawn_key, pool_size and n_children_spawned")
    pool = state.get("pool_size", 4)
    if not isinstance(pool, int) or not 4 <= pool <= 1024:
        raise Malformed(f"a seed sequence has no pool of {pool!r} words")
    try:
        return SeedSequence(**state)
    except (TypeError, ValueError, OverflowError) as error:
        raise Malformed(f"not a seed sequence: {error}") from error


class SeedSequenceCodec:
    """A `SeedSequence`. Immutable but for its spawn count, which numpy does not let anybody set: a
    sequence that differs is built anew."""

    name = "numpy.seedsequence"
    mutable = True

    def encode(self, value: SeedSequence, walk: Walk) -> Value:
        return write_plain(value.state, walk) if walk.contents else None

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        try:
            saved = _read_sequence(payload, graft)
        except Malformed as error:
            return graft.refuse(f"{error}.", twin)
        own = type(twin) is SeedSequence and (saved is None or _same(twin.state, saved.state))
        result = twin if own and graft.claim(twin) else saved
        graft.register(result)
        return result


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return type(a) is type(b) and bool(a == b)


def _of_the_process() -> object:
    """Return the bit generator behind `np.random`'s functions. It stays where it is, so it keeps its seed sequence:
    numpy 1 lets nobody set one, and nobody has children of this one spawned."""
    legacy: Any = np.random.mtrand
    return legacy._rand._bit_generator


_SETTABLE = np.lib.NumpyVersion(np.__version__) >= "2.0.0"
"""Whether a bit generator can be given a seed sequence: from numpy 2 on."""


def _new(kind: type[BitGenerator], sequence: object) -> BitGenerator:
    if _SETTABLE or sequence is None:
        made: Any = kind()
        if sequence is None and not _SETTABLE and hasattr(made, "_legacy_seeding"):
            made._legacy_seeding(0)  # takes the sequence away; the state follows
        return made  # type: ignore[no-any-return]
    seeded: Any = kind
    return seeded(sequence)  # type: ignore[no-any-return]


def _set(generator: BitGenerator, state: dict[str, Any], sequence: object) -> None:
    bare: Any = generator  # the stubs know numpy 1's form alone
    if _SETTABLE:
        bare.__setstate__((state, sequence))
    else:
        bare.state = state


_POSITIONS = {"pos": 624, "buffer_pos": 4}
"""Indices into a generator's own words; numpy believes them, and would read beyond."""


def _check_positions(state: Any) -> None:
    outer: dict[str, Any] = state if isinstance(state, dict) else {}
    inner: Any = outer.get("state")
    for words in (outer, inner if isinstance(inner, dict) else {}):
        for part, limit in _POSITIONS.items():
            at: object = words.get(part, 0)
            if not (type(at) is int and 0 <= at <= limit):
                raise Malformed(f"{part} cannot be {at!r:.40}")


class BitGeneratorCodec:
    """Every bit generator of numpy: PCG64, PCG64DXSM, MT19937, Philox, SFC64."""

    name = "numpy.bitgenerator"
    mutable = True

    def encode(self, value: BitGenerator, walk: Walk) -> Value:
        if not walk.contents:
            return None
        try:
            state: Any = value.state
        except NotImplementedError:  # a subclass that never says what it holds
            state = None
        if not isinstance(state, dict):
            raise NotCapturable(
                f"{walk.place} is a {class_name(type(value))}, whose state is no dict.",
                hint="Use one of numpy's own bit generators.",
                place=walk.place,
            )
        fields: dict[str, Value] = {"state": write_plain(state, walk)}
        bare: Any = value
        sequence: object = bare.seed_seq  # None, against the stubs, if seeded in the way of old
        spawns = value is not _of_the_process()
        if spawns and (sequence is None or type(sequence) is SeedSequence):
            fields["sequence"] = walk.child("sequence", sequence)
        return Dict(
            v=fields
        )  # without the key: what stands there stays the twin's, as with a class of the user's own

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        fits = isinstance(twin, BitGenerator) and class_name(type(twin)) == cls
        kind = type(twin) if fits else BIT_GENERATORS.get(cls.rpartition(":")[2])
        if kind is None or not issubclass(kind, BitGenerator) or class_name(kind) != cls:
            return graft.refuse(f"{cls} is no bit generator of numpy.", twin)
        had: object = twin.seed_seq if isinstance(twin, BitGenerator) and fits else None
        try:
            state, sequence = (None, had) if payload is None else self._read(payload, kind, had, graft)
        except Malformed as error:
            return graft.refuse(f"{error}.", twin)
        own = fits and (_SETTABLE or sequence is had) and graft.claim(twin)
        result: Any = twin if own else _new(kind, sequence)
        graft.register(result)
        if state is not None:
            graft.write(_set, result, state, sequence, phase=Phase.GENERATORS)
        return result

    @staticmethod
    def _read(
        payload: Value, kind: type[BitGenerator], own: object, graft: Graft
    ) -> tuple[dict[str, Any], object]:
        if not isinstance(payload, Dict) or payload.v is None or "state" not in payload.v:
            raise Malformed("a bit generator needs a state")
        state = read_plain(payload.v["state"], graft)
        sequence = own
        if "sequence" in payload.v:
            sequence = graft.value("sequence", payload.v["sequence"], own)
            if sequence is not None and type(sequence) is not SeedSequence:
                raise Malformed("a bit generator needs a seed sequence or none")
        _check_positions(state)
        try:
            kind().state = state
        except (TypeError, ValueError, KeyError, OverflowError, AttributeError) as error:
            raise Malformed(f"not a state of {kind.__name__}: {error!r}") from error
        return state, sequence


class GeneratorCodec:
    """`numpy.random.Generator`: nothing but its bit generator."""

    name = "numpy.generator"
    mutable = True

    def encode(self, value: np.random.Generator, walk: Walk) -> Value:
        return walk.here(value.bit_generator)

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        own = isinstance(twin, np.random.Generator) and class_name(type(twin)) == cls
        under = twin.bit_generator if isinstance(twin, np.random.Generator) else MISSING
        bits = graft.here(payload, under)
        if not isinstance(bits, BitGenerator):
            return graft.refuse("a generator needs a bit generator.", twin)
        if own and bits is under and graft.claim(twin):
            graft.register(twin)
            return twin
        result = np.random.Generator(bits)
        graft.register(result)
        return result


class RandomStateCodec:
    """`numpy.random.RandomState`: its bit generator and the Gaussian that it keeps in reserve."""

    name = "numpy.randomstate"
    mutable = True

    def encode(self, value: np.random.RandomState, walk: Walk) -> Value:
        bits = walk.child("bit_generator", value._bit_generator)
        if not walk.contents:
            return Dict(v={"bit_generator": bits})
        state: Any = value.get_state(legacy=False)
        return Dict(
            v={
                "bit_generator": bits,
                "has_gauss": int(state["has_gauss"]),
                "gauss": walk.child("gauss", float(state["gauss"])),
            }
        )

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        if not isinstance(payload, Dict) or payload.v is None:
            return graft.refuse("a RandomState needs a bit generator.", twin)
        under = twin._bit_generator if isinstance(twin, np.random.RandomState) else MISSING
        bits = graft.value("bit_generator", payload.v.get("bit_generator"), under)
        if not isinstance(bits, BitGenerator):
            return graft.refuse("a RandomState needs a bit generator.", twin)
        own = bits is under and class_name(type(twin)) == cls and graft.claim(twin)
        result: Any = twin if own else np.random.RandomState(bits)
        graft.register(result)
        if "gauss" not in payload.v:
            return result
        has, gauss = payload.v.get("has_gauss"), graft.value("gauss", payload.v["gauss"])
        if has not in (0, 1) or not isinstance(gauss, float):
            return graft.refuse("a RandomState keeps one Gaussian, or none.", twin)

        def put() -> None:
            # Only a whole state can be set; the bit generator's own write has run before this one.
            state: Any = result.get_state(legacy=False)
            result.set_state({**state, "has_gauss": has, "gauss": gauss})

        graft.write(put, phase=Phase.GENERATORS)
        return result


class PythonRandomCodec:
    """`random.Random`: 624 words, a position and a Gaussian in reserve."""

    name = "python.random"
    mutable = True

    def encode(self, value: random.Random, walk: Walk) -> Value:
        if not walk.contents:
            return None
        if isinstance(value, random.SystemRandom):
            return None
        version, words, gauss = value.getstate()
        array = np.array(words, dtype="<u4")
        return Dict(
            v={
                "version": version,
                "words": write_plain(array, walk),
                "gauss": None if gauss is None else walk.child("gauss", gauss),
            }
        )

    def plan(self, payload: Value, cls: str, twin: object, graft: Graft) -> Any:
        own = isinstance(twin, random.Random) and class_name(type(twin)) == cls and graft.claim(twin)
        if not own and cls != "random:Random":
            return graft.refuse(f"a generator of class {cls} cannot be built.", twin)
        result: Any = twin if own else random.Random()
        graft.register(result)
        if payload is None:
            return result
        try:
            state = self._read(payload, graft)
        except Malformed as error:
            return graft.refuse(f"{error}.", twin)
        graft.write(result.setstate, state, phase=Phase.GENERATORS)
        return result

    @staticmethod
    def _read(payload: Value, graft: Graft) -> tuple[Any, ...]:
        plain = read_plain(payload, graft)
        if not isinstance(plain, dict) or not isinstance(plain.get("words"), np.ndarray):
            raise Malformed("a Python generator needs its words")
        state = (plain.get("version"), tuple(plain["words"].tolist()), plain.get("gauss"))
        try:
            random.Random().setstate(state)
        except (TypeError, ValueError, OverflowError) as error:
            raise Malformed(f"not a state of random.Random: {error}") from error
        return state


POLICY = Policy(
    codecs={
        "numpy.random.bit_generator:BitGenerator": BitGeneratorCodec(),
        "numpy.random.bit_generator:SeedSequence": SeedSequenceCodec(),
        "numpy.random._generator:Generator": GeneratorCodec(),
        "numpy.random.mtrand:RandomState": RandomStateCodec(),
        "random:Random": PythonRandomCodec(),
    }
)
