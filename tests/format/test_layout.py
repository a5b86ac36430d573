"""Names: stable, one way back, and never outside their place."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from unbroken.format import layout
from unbroken.format.manifest import FileName
from unbroken.format.records import DirectoryField
from unbroken.types import Epoch, Sequence, Step, WriteId


def test_names_as_specified() -> None:
    assert layout.commit(Sequence(42)) == "commits/0000000042.json"
    assert layout.epoch(Epoch(3)) == "epochs/0000000003.json"
    assert layout.epoch_start(Epoch(3)) == "epochs/0000000003.start.json"
    assert layout.pack("ab12e3") == "packs/e3/ab12e3.pack"
    assert layout.index("ab12e3") == "packs/e3/ab12e3.idx"
    assert layout.document("model", "msgpack") == "model.msgpack"


@given(st.integers(1, 10**10 - 1))
def test_numbers_come_back(number: int) -> None:
    assert layout.commit_sequence(layout.commit(Sequence(number))) == number
    assert layout.epoch_number(layout.epoch(Epoch(number))) == number
    assert layout.epoch_number(layout.epoch_start(Epoch(number))) is None
    assert layout.commit_sequence(layout.epoch(Epoch(number))) is None


def test_foreign_keys_stand_for_nothing() -> None:
    for key in (
        "commits/1.json",
        "commits/0000000001.json~",
        "x/commits/0000000001.json",
        "commits/٠٠٠٠٠٠٠٠٠١.json",
    ):
        assert layout.commit_sequence(key) is None
    for key in (
        "packs/e4/cd12e3.pack",
        "packs/ab12e3.pack",
        "packs/e3/ab12e3.tmp",
        "packs/e3/x/ab12e3.pack",
        "",
    ):
        assert layout.pack_name(key) is None
    assert layout.pack_name("packs/e3/ab12e3.idx") == "ab12e3"


@given(st.integers(0, 10**18 - 1), st.text("0123456789abcdefz", min_size=1, max_size=64))
def test_checkpoint_names_are_accepted_in_records(step: int, write_id: str) -> None:
    name = layout.checkpoint(Step(step), WriteId(write_id))
    assert msgspec.convert(name, DirectoryField) == name


@given(st.text(st.characters(exclude_categories=()), min_size=1, max_size=15))
def test_any_component_has_a_file_name(component: str) -> None:
    name = layout.document(component, "json")
    assert msgspec.convert(name, FileName) == name
    assert name not in (layout.META, layout.MANIFEST)


@given(*[st.text(st.sampled_from("ab.%/~é2Em"), min_size=1, max_size=4)] * 2)
def test_two_components_never_share_a_file(a: str, b: str) -> None:
    assert (layout.document(a, "json") == layout.document(b, "json")) == (a == b)
