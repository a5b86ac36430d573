"""Headers of a call that end its client's tries at the second.

NeMo Gym's client tries a connection that fails again for ever, every half a second, and tells nobody. Each try reads the
headers anew. So the headers stop the second one before it has begun: whoever made the call tries again by himself, knows
that he does, and may give up.
"""

from __future__ import annotations

import time
from collections import UserDict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager

_LEAST = 0.25
"""Seconds: two readings within less belong to one try. The client pauses for twice as long."""


class ConnectionBroken(ConnectionError):
    """The client's first try has failed."""


class _TriedAgain(BaseException):
    """Raised through a client, which catches every `Exception` of a try."""


class HeadersOnce(UserDict[str, str]):
    """Of a call that is made within `one_try`."""

    def __init__(self, headers: Mapping[str, str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read: float | None = None
        super().__init__(headers)

    def __iter__(self) -> Iterator[str]:
        now = self._clock()
        if self._read is None:
            self._read = now
        elif now - self._read >= _LEAST:
            raise _TriedAgain
        return super().__iter__()


@contextmanager
def one_try() -> Generator[None, None, None]:
    """Let a client try once.

    Raises:
        ConnectionBroken: that failed.
    """
    try:
        yield
    except _TriedAgain:
        raise ConnectionBroken("the connection failed") from None


def broken() -> tuple[type[Exception], ...]:
    """Return the errors that say: no answer was got, and perhaps the call never arrived."""
    try:
        from aiohttp import ClientError
    except ImportError:
        return (ConnectionError,)
    return (ClientError, ConnectionError)
