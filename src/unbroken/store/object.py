"""A store in a bucket: S3, Google Cloud Storage or Azure, whatever obstore opens by its URL.

Credentials, region and endpoint come from the environment variables that obstore reads (`AWS_*`,
`GOOGLE_*`, `AZURE_*`). None of them appears in a message.

Importing this module needs the extra `cloud`; `repo/roots.py` does it for a root that is a URL.

- Every request is repeated after a failure in passing, by `Retry`; the parts of a large upload by the
  client, since what they are made of exists only once.
- Large content goes up in parts. The object appears when the last part is confirmed, or not at all.
- `put_if_absent` is one conditional request. Where an attempt got no answer and a later one says that the
  name is taken, it may be ours: that is an error ("unknown"), never "somebody else was first".
- Deletions go one by one: the writer looks before each whether the run is still his, and a request for a
  thousand would let one that has lost it delete a thousand (docs/design/008-overtaken-writers.md).
- Large reads are done in ranges, side by side, all of one version of the object.

Not promised: that parts of an upload that was cut off vanish by themselves. They cost money and no
correctness; a rule of the bucket removes them (docs/design/010-object-stores.md).
"""

# Its types name a package that obstore itself can do without (arro3), for listings that are not used here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, PreconditionError
from obstore.store import from_url

from unbroken.errors import ConfigError, ObjectMissing, StoreError, StoreUnavailable
from unbroken.format.buffers import Buffer, Content, pieces
from unbroken.state.crew import Crew
from unbroken.store import capability
from unbroken.store.base import Names, check_key, check_prefix, check_range, is_key
from unbroken.store.responses import refusal, word_of
from unbroken.store.retry import Retry

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore as Client
    from obstore.store import RetryConfig

T = TypeVar("T")

PART: Final = 8 << 20
"""Bytes in a part of an upload, or in one range of a download."""
AT_ONCE: Final = 8
"""Requests side by side."""
PARTS_AT_ONCE: Final = 4
"""Parts of one upload in memory."""


class ObjectStore:
    """Objects below `url`, and there below `below`. Safe for several threads and processes."""

    def __init__(self, url: str, *, below: str = "", retry: Retry | None = None, part: int = PART) -> None:
        """Open the bucket; nothing is asked of it yet.

        Raises:
            ConfigError: obstore is not installed, or the URL or the environment cannot be used.
        """
        self._url = url.rstrip("/")
        self._below = check_prefix(below)
        self._retry = retry or Retry()
        self._part = part
        self._client = _client(url, {"max_retries": 0})
        # The parts of an upload are repeated by the client: it alone has them.
        self._patient = _client(url, _patience(self._retry))

    def __repr__(self) -> str:
        return f"ObjectStore({self.where!r})"

    @property
    def where(self) -> str:
        """The URL of what this store holds."""
        return f"{self._url}/{self._below}" if self._below else self._url

    def probe(self) -> None:
        """Raise `ConfigError` if the store ignores preconditions. Writes an object and deletes it."""
        capability.check_creates_once(self, self.where)

    def get(self, key: str) -> bytes:
        """Return the object; `ObjectMissing` if there is none."""
        path = self._path(key)

        def read() -> bytes | int:
            result = obstore.get(self._client, path)
            size = result.meta["size"]
            return size if size > AT_ONCE * self._part else _whole(bytes(result.bytes()), size, key)

        found = self._call("reading", key, read)
        if isinstance(found, bytes):
            return found
        content = bytearray(found)
        return bytes(content[: self.read_into(key, 0, [memoryview(content)])])

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`: fewer only where the object ends."""
        check_range(key, offset, length)
        if length == 0:
            self.size(key)
            return b""
        return self._range(key, offset, length, {})

    def read_into(self, key: str, offset: int, parts: Sequence[memoryview]) -> int:
        """Fill `parts` with the bytes from `offset` on, side by side if they are many."""
        parts = [part.cast("B") for part in parts]
        length = sum(part.nbytes for part in parts)
        check_range(key, offset, length)
        if length <= self._part:
            return _fill(parts, self.get_range(key, offset, length))
        found = self._call("reading", key, lambda: obstore.head(self._client, self._path(key)))
        length = max(0, min(length, found["size"] - offset))
        same: GetOptions = {"if_match": found["e_tag"]}

        def fetch(at: int, views: list[memoryview]) -> None:
            wanted = sum(view.nbytes for view in views)
            if _fill(views, self._range(key, at, wanted, same)) != wanted:
                raise StoreUnavailable(f"Reading {self.where}/{key} ended early.", key=key)

        with Crew(AT_ONCE, "unbroken-ranges") as pool:
            jobs = {pool.submit(fetch, at, views) for at, views in _ranges(offset, length, parts, self._part)}
            try:
                _checked(jobs, all_of_them=True)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return length

    def size(self, key: str) -> int:
        """Return the object's size in bytes; `ObjectMissing` if there is none."""
        path = self._path(key)
        return self._call("reading", key, lambda: obstore.head(self._client, path)["size"])

    def put(self, key: str, data: Content) -> None:
        """Write the object, in place of one that is there.

        Large content that comes from a generator cannot be sent again as a whole: after a failure that
        outlasts the retries of its parts the caller has to make it anew.
        """
        self._path(key)
        small, large = self._gathered(data)
        if large is None:
            self._put_small(key, small)
        elif isinstance(data, (bytes, bytearray, memoryview, list, tuple)):
            self._retry.call(lambda: self._put_large(key, _blocks(data, self._part)))
        else:
            self._put_large(key, large)

    def put_all(self, items: Iterable[tuple[str, Content]]) -> None:
        """Write the objects side by side; the last one once all others are there.

        The content of one is read to its end before the next one is asked for. A large one is sent alone.
        """
        held: tuple[str, bytes] | None = None
        waiting: set[Future[None]] = set()
        seen: set[str] = set()
        with Crew(AT_ONCE, "unbroken-uploads") as pool:
            try:
                for key, data in items:
                    self._path(key)
                    small, large = self._gathered(data)
                    if held is not None:
                        waiting.add(pool.submit(self._put_small, *held))
                        held = None
                    # A large one may be the last; one of a key that was there before must come after it.
                    waiting = _checked(waiting, all_of_them=large is not None or key in seen)
                    seen.add(key)
                    if large is None:
                        held = key, small
                    else:
                        self._put_large(key, large)
                _checked(waiting, all_of_them=True)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        if held is not None:
            self._put_small(*held)

    def put_if_absent(self, key: str, data: Content) -> bool:
        """Write the object if there is none of this name. Return whether it was written.

        Raises:
            StoreUnavailable: among others where the name is taken and nobody knows whether by this call.
        """
        path = self._path(key)
        content = b"".join(pieces(data))
        unanswered = False

        def create() -> bool:
            nonlocal unanswered
            try:
                obstore.put(self._client, path, content, mode="create", use_multipart=False)
            except AlreadyExistsError as error:
                if word_of(error) == "ConditionalRequestConflict":  # of two at once; neither is written yet
                    raise StoreUnavailable(
                        f"Writing {self.where}/{key} met another write.", key=key
                    ) from None
                return False
            except BaseError:
                unanswered = True
                raise
            return True

        created = self._call("writing", key, create)
        if unanswered and not created:
            raise StoreUnavailable(
                f"{self.where}/{key} exists; whether this process has created it is not known,"
                " since an answer was lost.",
                hint="Compare what it holds.",
                key=key,
            )
        return created

    def list(self, prefix: str = "") -> Names:
        """Return the keys below `prefix`, sorted. Foreign objects are left out."""
        path = self._prefix(prefix)

        def read() -> Names:
            found = obstore.list(self._client, path)
            return [entry["path"] for page in found for entry in page]

        keys = map(self._key, self._call("listing", prefix, read))
        return sorted(key for key in keys if is_key(key))

    def children(self, prefix: str = "") -> Names:
        """Return the names directly below `prefix`, sorted; of objects and of prefixes alike."""
        path = self._prefix(prefix)

        def read() -> Names:
            found = obstore.list_with_delimiter(self._client, path)
            # Some servers go on showing a prefix for a while after the last object in it is gone.
            prefixes = (below for below in found["common_prefixes"] if self._holds_any(below))
            return [*prefixes, *(entry["path"] for entry in found["objects"])]

        names = {entry.rpartition("/")[2] for entry in self._call("listing", prefix, read)}
        return sorted(filter(is_key, names))

    def delete(self, key: str) -> None:
        """Delete the object. It is no error if there is none."""
        path = self._path(key)
        with suppress(ObjectMissing):
            self._call("deleting", key, lambda: obstore.delete(self._client, path))

    def _holds_any(self, path: str) -> bool:
        return any(len(page) for page in obstore.list(self._client, path, chunk_size=1))

    def _put_small(self, key: str, data: bytes) -> None:
        path = self._path(key)
        self._call("writing", key, lambda: obstore.put(self._client, path, data, use_multipart=False))

    def _put_large(self, key: str, blocks: Iterator[bytes]) -> None:
        with self._failures("writing", key):
            obstore.put(
                self._patient,
                self._path(key),
                blocks,
                use_multipart=True,
                chunk_size=self._part,
                max_concurrency=PARTS_AT_ONCE,
            )

    def _gathered(self, data: Content) -> tuple[bytes, Iterator[bytes] | None]:
        """Return content as bytes if it fits into one part, else as blocks of that size."""
        blocks = _blocks(data, self._part)
        first = next(blocks, b"")
        second = next(blocks, None)
        return (first, None) if second is None else (b"", chain((first, second), blocks))

    def _range(self, key: str, offset: int, length: int, options: GetOptions) -> bytes:
        path = self._path(key)

        def read() -> bytes:
            try:
                result = obstore.get(
                    self._client, path, options={**options, "range": (offset, offset + length)}
                )
                start, end = result.range
                return _whole(bytes(result.bytes()), end - start, key)
            except PreconditionError:
                raise StoreError(
                    f"{self.where}/{key} was replaced while it was being read.",
                    hint="Read it again.",
                    key=key,
                ) from None
            except GenericError:
                # Clients say it in many ways where the object ends before `offset`.
                if obstore.head(self._client, path)["size"] > offset:
                    raise
                return b""

        return self._call("reading", key, read)

    def _call(self, doing: str, key: str, operation: Callable[[], T]) -> T:
        def attempt() -> T:
            with self._failures(doing, key):
                return operation()

        return self._retry.call(attempt)

    @contextmanager
    def _failures(self, doing: str, key: str) -> Generator[None, None, None]:
        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            # Without its cause: the client's text may hold a secret, and a traceback would show it.
            raise refusal(error, doing=doing, where=self.where, key=key) from None

    def _path(self, key: str) -> str:
        return self._prefix(check_key(key))

    def _prefix(self, prefix: str) -> str:
        return "/".join(part for part in (self._below, check_prefix(prefix)) if part)

    def _key(self, path: str) -> str:
        return path[len(self._below) + 1 :] if self._below else path


def _client(url: str, retries: RetryConfig) -> Client:
    try:
        return from_url(url, retry_config=retries)
    except (BaseError, ValueError) as error:  # the client's parser of URLs has no error of its own
        missing = "Account must be specified" in str(error)
        raise ConfigError(
            f"{url} cannot be opened: {'no account is named' if missing else 'it is not understood'}.",
            hint="Set AZURE_STORAGE_ACCOUNT_NAME."
            if missing
            else "Write s3://bucket/prefix, gs://bucket/prefix or az://container/prefix.",
        ) from None


def _patience(retry: Retry) -> RetryConfig:
    """Return the same number of attempts, in the client's words."""
    return {
        "max_retries": retry.attempts - 1,
        "retry_timeout": timedelta(seconds=retry.within),
        "backoff": {
            "init_backoff": timedelta(seconds=retry.first),
            "max_backoff": timedelta(seconds=retry.most),
        },
    }


def _blocks(data: Content, size: int) -> Iterator[bytes]:
    """Yield the content in blocks of `size` bytes, the last one shorter; copies, since a piece may be reused."""
    block = bytearray()
    for piece in pieces(data):
        view = memoryview(piece).cast("B")
        while view:
            taken = view[: size - len(block)]
            block += taken
            view = view[taken.nbytes :]
            if len(block) == size:
                yield bytes(block)
                block.clear()
    if block:
        yield bytes(block)


def _ranges(
    offset: int, length: int, parts: Sequence[memoryview], most: int
) -> Iterator[tuple[int, list[memoryview]]]:
    """Cut `length` bytes from `offset` into ranges of at most `most` bytes, each with the memory it fills."""
    at, views, held = offset, list[memoryview](), 0
    left = length
    for part in parts:
        rest = part[:left]
        left -= rest.nbytes
        while rest:
            view = rest[: most - held]
            views.append(view)
            held += view.nbytes
            rest = rest[view.nbytes :]
            if held == most:
                yield at, views
                at, views, held = at + held, [], 0
    if held:
        yield at, views


def _fill(parts: Sequence[memoryview], data: Buffer) -> int:
    """Copy `data` into `parts`, one after the other; return how many bytes it had."""
    rest = memoryview(data)
    for part in parts:
        piece = rest[: part.nbytes]
        part[: piece.nbytes] = piece
        rest = rest[piece.nbytes :]
    return len(data)


def _whole(data: bytes, size: int, key: str) -> bytes:
    """Return `data` if it has `size` bytes."""
    if len(data) != size:
        raise StoreUnavailable(f"Reading {key} ended after {len(data)} of {size} bytes.", key=key)
    return data


def _checked(waiting: set[Future[None]], *, all_of_them: bool) -> set[Future[None]]:
    """Wait until one more upload may begin, or for all; raise the error of one that failed. Return the others."""
    if not all_of_them and len(waiting) < AT_ONCE:
        return waiting
    done, rest = wait(waiting, return_when=FIRST_EXCEPTION if all_of_them else FIRST_COMPLETED)
    for job in done:
        job.result()
    return rest
