"""Digests and compresses chunks on a few threads, and hands them on in order.

All that costs time here runs without Python's global lock, so training's own threads lose at most the
cores that `THREADS` names. The threads live as long as one save: nothing waits idle, and a process that
forks between two saves has no thread to leave behind.

Invariant: at most `AHEAD` chunks of a run are on their way, so that a slow disk fills no memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from unbroken.format.buffers import Buffer
from unbroken.format.compression import WORTH, BlobCodec, Compression, Compressor
from unbroken.format.digest import digest_of
from unbroken.state.crew import Crew
from unbroken.types import Digest

if TYPE_CHECKING:
    from typing_extensions import Self

THREADS = 2
"""Threads that digest and compress, beside the one that writes."""

AHEAD = 16

Tag = TypeVar("Tag")


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """A blob as it goes into a pack: digest and size of its bytes, and the bytes to store."""

    digest: Digest
    size: int
    codec: BlobCodec
    content: Buffer


class Pipeline:
    """A context manager; use it from one thread.

    `is_new` says of a digest whether the blob has to be stored; it is asked from the pipeline's threads.
    `worth` is the least ratio for which bytes are compressed. With `live`, chunks lie in the memory of the
    training, where a thread of its own may still write: each is copied first, so that at least what is stored
    is what was digested.
    """

    def __init__(
        self,
        compression: Compression,
        is_new: Callable[[Digest], bool],
        *,
        worth: float = WORTH,
        live: bool = False,
    ) -> None:
        self._live = live
        self._compression = compression
        self._worth = worth
        self.is_new = is_new
        self._local = threading.local()
        self._pool = Crew(THREADS, "unbroken-chunks")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def run(
        self, chunks: Iterable[tuple[Tag, Buffer]], *, then: Callable[[], None] | None = None
    ) -> PipelineRun[Tag]:
        """Have chunks digested and compressed. `then` is called when the last of them is under way: what
        comes next can be begun, so that the threads need not wait for this run to be used up."""
        return PipelineRun(lambda chunk: self._pool.submit(self._prepared, chunk), iter(chunks), then)

    def _prepared(self, chunk: Buffer) -> tuple[Digest, StoredBlob | None]:
        if self._live:
            chunk = bytes(chunk)
        digest = digest_of(chunk)
        if not self.is_new(digest):
            return digest, None
        codec, content = self._compressor().compress(chunk)
        return digest, StoredBlob(digest, memoryview(chunk).nbytes, codec, content)

    def _compressor(self) -> Compressor:
        found: Compressor | None = getattr(self._local, "compressor", None)
        if found is None:
            found = self._local.compressor = Compressor(self._compression, worth=self._worth)
        return found


class PipelineRun(Generic[Tag]):
    """Yields for each chunk, in order, its digest, and what to store if it is new."""

    def __init__(
        self,
        submit: Callable[[Buffer], Future[tuple[Digest, StoredBlob | None]]],
        chunks: Iterator[tuple[Tag, Buffer]],
        then: Callable[[], None] | None,
    ) -> None:
        self._submit = submit
        self._chunks = chunks
        self._then = then
        self._waiting: deque[tuple[Tag, Future[tuple[Digest, StoredBlob | None]]]] = deque()

    def begin(self) -> None:
        """Let the threads begin with the first chunks."""
        while len(self._waiting) < AHEAD:
            found = next(self._chunks, None)
            if found is None:
                then, self._then = self._then, None
                if then is not None:
                    then()
                return
            tag, chunk = found
            self._waiting.append((tag, self._submit(chunk)))

    def __iter__(self) -> Iterator[tuple[Tag, Digest, StoredBlob | None]]:
        self.begin()
        while self._waiting:
            tag, future = self._waiting.popleft()
            yield tag, *future.result()
            self.begin()
