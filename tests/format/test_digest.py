"""Digests name their algorithm and are the same in pieces and whole."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.errors import CorruptObject
from unbroken.format.digest import Algorithm, Digester, digest_of, join, matches, split

EMPTY = {
    Algorithm.BLAKE3: "b3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    Algorithm.SHA256: "sha256:" + hashlib.sha256().hexdigest(),
}


@pytest.mark.parametrize("algorithm", Algorithm)
def test_known_values(algorithm: Algorithm) -> None:
    assert digest_of(b"", algorithm=algorithm) == EMPTY[algorithm]


@given(st.lists(st.binary(max_size=300), max_size=5), st.sampled_from(Algorithm))
def test_pieces_and_whole_agree(pieces: list[bytes], algorithm: Algorithm) -> None:
    whole = b"".join(pieces)
    digest = digest_of(whole, algorithm=algorithm)
    assert digest_of(pieces, algorithm=algorithm) == digest
    digester = Digester(algorithm)
    for piece in pieces:
        digester.update(memoryview(piece))
    assert digester.digest() == digest
    assert join(*split(digest)) == digest
    assert matches(whole, digest)
    assert not matches(whole + b"x", digest)


@pytest.mark.parametrize(
    "text",
    ["", "b3", "b3:", "b3:00", "md5:" + "0" * 64, "b3:" + "A" * 64, "b3:" + "g" * 64, "b3:" + "0 " * 32],
)
def test_what_is_no_digest_is_corrupt(text: str) -> None:
    with pytest.raises(CorruptObject):
        split(text)


@given(st.text(max_size=100))
def test_any_text_is_a_digest_or_corrupt(text: str) -> None:
    try:
        assert join(*split(text)) == text
    except CorruptObject:
        pass
