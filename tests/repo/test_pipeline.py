"""Chunks are digested and compressed in order; of memory that somebody writes to, what is stored is what was digested."""

from __future__ import annotations

import numpy as np
import pytest

from unbroken.format.compression import BlobCodec, Compression, decompress
from unbroken.format.digest import digest_of
from unbroken.repo.pipeline import AHEAD, Pipeline
from unbroken.types import Digest

RAW = Compression(BlobCodec.RAW)


def test_results_come_in_the_order_of_the_chunks_and_known_blobs_are_not_stored() -> None:
    chunks = [bytes([n]) * (1 + 1000 * (n % 3)) for n in range(3 * AHEAD)]
    known = digest_of(chunks[5])
    with Pipeline(RAW, lambda digest: digest != known) as pipeline:
        found = list(pipeline.run(enumerate(chunks)))
    assert [(tag, digest) for tag, digest, _ in found] == [(n, digest_of(c)) for n, c in enumerate(chunks)]
    assert [None if new is None else bytes(new.content) for _, _, new in found] == [
        None if n == 5 else chunk for n, chunk in enumerate(chunks)
    ]


def test_what_comes_next_is_begun_when_the_last_chunk_is_under_way() -> None:
    begun = list[str]()
    with Pipeline(RAW, lambda _: True) as pipeline:
        following = pipeline.run([("second", b"b")])

        def begin() -> None:
            begun.append("second")
            following.begin()

        first = iter(pipeline.run([("first", b"a")], then=begin))
        assert next(first)[0] == "first"
        assert begun == ["second"]
        assert [tag for tag, _, _ in following] == ["second"]


@pytest.mark.parametrize("codec", list(BlobCodec))
def test_live_memory_that_changes_meanwhile_is_stored_as_it_was_digested(codec: BlobCodec) -> None:
    live = np.zeros(100_000, np.uint8)

    def overwritten(digest: Digest) -> bool:
        live[:] += 1  # another thread of the training, between the digest and the compression
        return True

    with Pipeline(Compression(codec), overwritten, live=True) as pipeline:
        ((_, digest, new),) = pipeline.run([(0, live.data)])
    assert new is not None
    content = bytearray(new.size)
    decompress(new.codec, new.content, memoryview(content))
    assert digest_of(content) == digest
