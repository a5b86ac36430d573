from __future__ import annotations

import pytest

from unbroken.errors import ConfigError, StoreDenied, StoreUnavailable
from unbroken.format.buffers import Content
from unbroken.store.capability import check_creates_once
from unbroken.store.memory import MemoryStore


class Overwriting(MemoryStore):
    """Takes the condition and ignores it."""

    def put_if_absent(self, key: str, data: Content) -> bool:
        self.put(key, data)
        return True


class Lossy(MemoryStore):
    """Creates, and loses its answers."""

    def put_if_absent(self, key: str, data: Content) -> bool:
        super().put_if_absent(key, data)
        raise StoreUnavailable("No answer.", key=key)


class Undeletable(MemoryStore):
    def delete(self, key: str) -> None:
        raise StoreDenied("No.", key=key)


def test_a_store_that_creates_once_passes() -> None:
    store = MemoryStore()
    check_creates_once(store, "here")
    assert store.list() == []


def test_one_that_overwrites_is_refused_by_its_name() -> None:
    store = Overwriting()
    with pytest.raises(ConfigError, match=r"^s3://bucket cannot hold checkpoints") as caught:
        check_creates_once(store, "s3://bucket")
    assert caught.value.hint
    assert store.list() == []


def test_one_that_does_not_answer_is_not_judged() -> None:
    store = Lossy()
    with pytest.raises(StoreUnavailable):
        check_creates_once(store, "here")
    assert store.list() == []


def test_each_trial_has_a_name_of_its_own_that_may_stay() -> None:
    store = Undeletable()
    check_creates_once(store, "here")
    check_creates_once(store, "here")
    assert len(store.list()) == 2
