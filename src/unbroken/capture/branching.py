"""Gives generators other streams than those that they were restored to: for a clone of a training.

The new stream follows from what the generator would have drawn next and from a salt, by a hash: the same
clone gets the same streams, two clones get different ones, and none is that of the parent.

Not promised: anything about generators in other processes, or inside what is captured as a whole (an
emulator, a simulator that is brought back by replay): they go on with the parent's stream.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np


def branch_all(objects: Iterable[object], salt: bytes) -> int:
    """Branch every generator among `objects`, each once; return how many there were."""
    done: set[int] = set()
    for found in list(objects):
        act, core = _branch_of(found)
        if act is not None and id(core) not in done:
            done.add(id(core))
            act(core, salt)
    return len(done)


def _branch_of(found: Any) -> tuple[Callable[[Any, bytes], None] | None, Any]:
    """Return how a generator is branched, and the object that holds its state; none for anything else."""
    if isinstance(found, np.random.Generator):
        return _branch_bits, found.bit_generator
    if isinstance(found, np.random.BitGenerator):
        return _branch_bits, found
    if isinstance(found, np.random.RandomState):
        return _branch_legacy, found
    if isinstance(found, random.Random) and not isinstance(found, random.SystemRandom):
        return _branch_python, found
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(found, torch.Generator):
        return _branch_torch, found
    return None, None


def _seed(drawn: bytes, salt: bytes) -> int:
    return int.from_bytes(hashlib.sha256(salt + b"\0" + drawn).digest(), "big")


def _branch_bits(bits: Any, salt: bytes) -> None:
    drawn = np.asarray(bits.random_raw(8), np.uint64).tobytes()
    bits.state = type(bits)(_seed(drawn, salt)).state


def _branch_legacy(state: np.random.RandomState, salt: bytes) -> None:
    seed = _seed(state.bytes(32), salt)
    state.seed([(seed >> shift) & 0xFFFFFFFF for shift in range(0, 256, 32)])


def _branch_python(generator: random.Random, salt: bytes) -> None:
    generator.seed(_seed(generator.getrandbits(256).to_bytes(32, "big"), salt))


def _branch_torch(generator: Any, salt: bytes) -> None:
    generator.manual_seed(_seed(generator.get_state().numpy().tobytes(), salt) >> 193)  # 63 bits
