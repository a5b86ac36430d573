"""Segments amount to what a plain dict would hold, and leave alone what did not change."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.adapters.nemo_gym.control import Exported, Record
from unbroken.adapters.nemo_gym.trainer.segments import MOST, Segments, read_segments
from unbroken.errors import CorruptObject

KEYS = st.sampled_from("abcdefgh")
CHANGES = st.dictionaries(KEYS, st.binary(max_size=40))
EXPORTS = st.lists(st.tuples(st.booleans(), CHANGES), max_size=30)


def exported(changes: dict[str, bytes], *, complete: bool = False) -> Exported:
    records = [Record(key=key, data=data) for key, data in changes.items()]
    return Exported(lineage="l", mark=0, complete=complete, records=records)


@given(EXPORTS)
def test_they_amount_to_what_a_dict_holds(exports: list[tuple[bool, dict[str, bytes]]]) -> None:
    segments, model = Segments(), dict[str, bytes]()
    for complete, changes in exports:
        before = segments.blobs()
        segments.apply(exported(changes, complete=complete))
        if complete:
            model = {}
        model.update(changes)
        model = {key: data for key, data in model.items() if data}
        after = segments.blobs()
        assert segments.records() == model == read_segments(after)
        if len(after) > len(before) and not complete:
            assert all(one is other for one, other in zip(before, after, strict=False))
        assert Segments(after).records() == model


def test_a_save_adds_what_changed_and_leaves_the_rest_as_it_is() -> None:
    segments = Segments()
    segments.apply(exported({str(i): bytes(100) for i in range(100)}, complete=True))
    first = segments.blobs()[0]
    segments.apply(exported({"3": b"other"}))
    segments.apply(exported({"4": b""}))
    assert segments.blobs()[0] is first
    assert len(segments.blobs()) == 3
    assert segments.records()["3"] == b"other"
    assert "4" not in segments.records()


def test_what_is_exported_whole_and_has_not_changed_costs_nothing() -> None:
    segments = Segments()
    segments.apply(exported({"a": b"1" * 100, "b": b"2" * 100}, complete=True))
    segments.apply(exported({"a": b"3"}))
    before = segments.blobs()
    segments.apply(exported({"b": b"2" * 100, "a": b"3"}, complete=True))
    assert all(one is other for one, other in zip(before, segments.blobs(), strict=True))


def test_later_segments_are_merged_when_they_grow() -> None:
    segments = Segments()
    segments.apply(exported({"a": bytes(100), "b": bytes(100)}, complete=True))
    segments.apply(exported({"a": bytes(90)}))
    segments.apply(exported({"b": bytes(90)}))
    assert len(segments.blobs()) == 1


def test_there_are_never_many() -> None:
    segments = Segments()
    segments.apply(exported({"big": bytes(100_000)}, complete=True))
    for i in range(3 * MOST):
        segments.apply(exported({"small": str(i).encode()}))
        assert len(segments.blobs()) <= MOST + 1
    assert segments.records() == {"big": bytes(100_000), "small": str(3 * MOST - 1).encode()}


def test_one_that_cannot_be_read_is_said() -> None:
    with pytest.raises(CorruptObject, match="segment of records"):
        read_segments([msgspec.msgpack.encode({"no": "list"})])
