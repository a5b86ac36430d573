from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.errors import CorruptObject, InternalError, UnsupportedFormat
from unbroken.format.records import EpochStart, FormatRecord
from unbroken.repo.seal import seal, seal_json, unseal, unseal_json
from unbroken.types import Epoch, Sequence, WriteId

RECORD = EpochStart(epoch=Epoch(3), first=Sequence(17), write_id=WriteId("000000000000e3"))


def test_a_sealed_record_is_plain_json_and_comes_back() -> None:
    data = seal(RECORD)
    assert json.loads(data)["first"] == 17
    assert unseal(data, EpochStart, key="k") == RECORD


def test_every_flipped_bit_is_seen() -> None:
    data = seal(RECORD)
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            with pytest.raises(CorruptObject):
                unseal(bytes(flipped), EpochStart, key="k")


@pytest.mark.parametrize("end", [0, 1, 20, -1])
def test_a_cut_off_record_is_seen(end: int) -> None:
    with pytest.raises(CorruptObject):
        unseal(seal(RECORD)[:end], EpochStart, key="k")


def test_a_field_of_a_later_version_is_covered_too() -> None:
    data = seal_json(b'{"record": "format", "version": 0, "later": "' + b"0" * 64 + b'"}')
    assert unseal(data, FormatRecord, key="k") == FormatRecord()
    with pytest.raises(CorruptObject):
        unseal(data.replace(b"later", b"lateR"), FormatRecord, key="k")


def test_a_newer_version_is_not_called_damage() -> None:
    with pytest.raises(UnsupportedFormat):
        unseal(seal_json(b'{"record": "format", "version": 99}'), FormatRecord, key="k")


@given(st.dictionaries(st.text(), st.text() | st.integers(), min_size=1))
def test_any_object_can_be_sealed(content: dict[str, str | int]) -> None:
    data = seal_json(json.dumps(content).encode())
    unseal_json(data, key="k")
    found = json.loads(data)
    assert found.pop("check").startswith("b3:")
    assert found == {name: value for name, value in content.items() if name != "check"}


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]"])
def test_only_objects_with_a_field_can_be_sealed(body: bytes) -> None:
    with pytest.raises(InternalError):
        seal_json(body)
