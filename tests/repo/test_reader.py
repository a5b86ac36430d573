"""A state that was loaded can tell, later, what of it is no longer as it was read."""

from __future__ import annotations

import numpy as np
import pytest

from unbroken.format.compression import BlobCodec, Compression
from unbroken.format.document import CHUNK
from unbroken.repo.encoding import INLINE_CHUNKS
from unbroken.repo.repository import Repository
from unbroken.state.snapshot import Snapshot
from unbroken.store.memory import MemoryStore

from .states import meta, noise, snapshot

LISTED = bytes((INLINE_CHUNKS + 1) * CHUNK)
"""So large that its chunks have a list of their own."""


def loaded(buffer: bytes, *, codec: BlobCodec = BlobCodec.ZSTD) -> Snapshot:
    repository = Repository.over(MemoryStore(), "job", create=True)
    with repository.writer(compression=Compression(codec)) as writer:
        commit = writer.write(snapshot(noise(3000, 1), buffer), meta(1))
    return repository.load(commit)


@pytest.mark.parametrize("buffer", [b"", b"x" * 100, noise(3 * CHUNK + 1, 2), LISTED])
def test_what_was_overwritten_since_it_was_read_is_found(buffer: bytes) -> None:
    state = loaded(buffer)
    every = [(name, i) for name, part in state.components.items() for i in range(len(part.blobs))]
    assert state.recheck is not None
    assert state.recheck(every) == []
    for name, i in every:
        memory = state.components[name].content(i)
        for at in {0, memory.size - 1} if memory.size else ():
            memory[at] ^= 1
            assert state.recheck(every) == [(name, i)]
            assert state.recheck([other for other in every if other != (name, i)]) == []
            memory[at] ^= 1


@pytest.mark.parametrize("codec", BlobCodec)
def test_equal_chunks_are_fetched_once_and_come_back_everywhere(codec: BlobCodec) -> None:
    chunk = noise(CHUNK // 2, 3) + bytes(CHUNK // 2)
    buffer = (chunk + bytes(CHUNK)) * 3 + chunk[:1000]
    found = loaded(buffer, codec=codec).components["replay_buffer"].content(0)
    assert np.array_equal(found, np.frombuffer(buffer, np.uint8))
    assert found.flags.writeable
