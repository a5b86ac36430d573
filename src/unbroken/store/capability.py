"""Finds out whether a store keeps the one promise that everything rests on: a name is created once.

Some servers that speak the protocol of an object store take the condition and ignore it. Two writers
would then both believe that a commit is theirs.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress

from unbroken.errors import ConfigError, StoreError
from unbroken.store.base import ByteStore

PREFIX = "probe-"


def check_creates_once(
    store: ByteStore, where: str, *, token: Callable[[], str] = lambda: secrets.token_hex(8)
) -> None:
    """Create a name twice and demand that the second time is refused; leave nothing behind.

    Raises:
        ConfigError: it was not.
        StoreError: the store does not answer, or may not be written to.
    """
    key = f"{PREFIX}{token()}"
    try:
        store.put_if_absent(key, b"first")
        twice = store.put_if_absent(key, b"second")
    finally:
        with suppress(StoreError):  # a name of its own that nobody reads
            store.delete(key)
    if twice:
        raise ConfigError(
            f"{where} cannot hold checkpoints: it writes over what must be created only once"
            " (it ignores If-None-Match).",
            hint="Use a store with conditional writes, such as S3, GCS, Azure or SeaweedFS.",
        )
