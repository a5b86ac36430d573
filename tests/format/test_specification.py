"""The examples in docs/format.md are what the code writes and reads."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from unbroken.format import document, pack
from unbroken.format.chunks import ChunkList, read_list, root_size, shape
from unbroken.format.compression import BlobCodec
from unbroken.format.digest import digest_of
from unbroken.format.pack import PackWriter
from unbroken.format.records import Commit, FormatRecord
from unbroken.repo.seal import seal, unseal
from unbroken.state import nodes
from unbroken.state.snapshot import Component

TEXT = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
JSON = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)


def shown_bytes(block: str) -> bytes:
    return bytes.fromhex("".join(line[6:54] for line in block.splitlines()))


LIST, PACK = map(shown_bytes, re.findall(r"```hex\n(.*?)```", TEXT, re.DOTALL))


def test_the_chunk_list() -> None:
    ref = msgspec.json.decode(JSON[2], type=document.BlobRef)
    chunks = ChunkList.of([digest_of(chunk) for chunk in document.chunks_of(b"abcde", ref.chunk)])
    assert (ref.size, ref.count, ref.tree) == (5, 2, chunks.name)
    assert chunks.root.data == LIST
    assert len(LIST) == root_size(ref.count)
    assert list(read_list(chunks.name, ref.count, lambda _: {chunks.name: LIST})) == list(chunks)


def test_the_numbers_of_a_long_list() -> None:
    assert (
        f"A list of 70,000 chunks has {', '.join(map(str, shape(70_000)[:2]))} and {shape(70_000)[2]}."
        in TEXT
    )


def test_the_pack() -> None:
    shown = PACK
    writer = PackWriter("3f9c2e01ab44e7")
    assert b"".join(writer.stream([(digest_of(b"abc"), 3, BlobCodec.RAW, b"abc")])) == shown
    (entry,) = pack.scan(lambda offset, length: shown[offset : offset + length])
    assert pack.read_blob(shown[entry.offset :])[1] == b"abc"


@pytest.mark.parametrize(("number", "kind"), [(0, FormatRecord), (1, Commit)])
def test_the_records(number: int, kind: type[FormatRecord | Commit]) -> None:
    shown = JSON[number].encode()
    assert seal(unseal(shown, kind, key="example")) == shown


def test_the_document() -> None:
    weight = nodes.Array(d="<f4", s=(512, 512), b=0)
    policy = nodes.Object(c="net:Policy", a={"gamma": 0.99, "weight": weight})
    blob = document.BlobRef(1 << 20, [digest_of(bytes(1 << 20))])
    component = Component("model", {"model": policy}, tensors={"model": {"weight": "model/weight"}})
    assert document.encode(component, [blob]).decode() == JSON[3].removesuffix("\n")
    assert document.decode(JSON[3].encode()).roots == {"model": policy}


def test_every_word_is_explained() -> None:
    words = [word for word in vars(nodes).values() if isinstance(word, type) and issubclass(word, nodes.Node)]
    tags = {word.__struct_config__.tag for word in words} - {"Node", "Identity"}
    section = TEXT[TEXT.index("## 6. ") : TEXT.index("## 7. ")]
    explained = set(re.findall(r"`([a-z]+)`", "".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE))))
    assert tags <= explained
    for word in words:
        fields = {field.encode_name for field in msgspec.structs.fields(word)} - {"id"}
        assert fields <= set(re.findall(r"`([a-z]+)`", section)), word
