"""A store with hints on this machine passes the suite, whichever of its keys are hints."""

from __future__ import annotations

from pathlib import Path

import pytest

from unbroken.errors import StoreUnavailable
from unbroken.store.base import ByteStore
from unbroken.store.hinted import HintedStore
from unbroken.store.local import LocalStore
from unbroken.store.memory import MemoryStore
from unbroken.testing.faulty_store import FaultyStore
from unbroken.testing.store_suite import StoreSuite


class TestHintedStore(StoreSuite):
    def make_store(self, tmp_path: Path) -> HintedStore:
        return HintedStore(MemoryStore(), LocalStore(tmp_path), ["k", "a/1", "a/b/c.bin", "d/2", "index"])

    def test_names_appear_after_all_contents(self, store: ByteStore) -> None:
        """It promises what the store elsewhere does, which is not that."""

    def test_one_content_that_fails_leaves_none_of_them(self, store: ByteStore) -> None:
        """Nor that."""


def test_a_hint_costs_no_request(tmp_path: Path) -> None:
    away = FaultyStore(MemoryStore())
    store = HintedStore(away, LocalStore(tmp_path), ["pending.json"])
    store.put("pending.json", b"a save was begun")
    assert store.get("pending.json") == b"a save was begun"
    assert away.operations == []
    assert away.inner.list() == []
    assert (tmp_path / "pending.json").read_bytes() == b"a save was begun"
    assert store.is_local("pending.json")
    assert not store.is_local("latest.txt")


def test_another_machine_sees_all_but_the_hints(tmp_path: Path) -> None:
    away = MemoryStore()
    here = HintedStore(away, LocalStore(tmp_path / "here"), ["pending.json"])
    there = HintedStore(away, LocalStore(tmp_path / "there"), ["pending.json"])
    here.put("pending.json", b"hint")
    here.put("latest.txt", b"fact")
    assert here.list() == ["latest.txt", "pending.json"]
    assert there.list() == ["latest.txt"]


def test_a_store_that_cannot_be_tried_out_is_taken_as_it_is(tmp_path: Path) -> None:
    HintedStore(MemoryStore(), LocalStore(tmp_path), []).probe()


def test_what_the_store_elsewhere_says_of_itself_is_asked(tmp_path: Path) -> None:
    class Away(MemoryStore):
        def probe(self) -> None:
            raise StoreUnavailable("no answer")

    with pytest.raises(StoreUnavailable):
        HintedStore(Away(), LocalStore(tmp_path), []).probe()
