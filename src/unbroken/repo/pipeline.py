"""Digests and compresses chunks on a few threads, and hands them on in order.

All that costs time here runs without Python's global lock, so training's own threads lose at most the
cores that `THREADS` names. The threads live as long as one save: nothing waits idle, and a process that
forks between two saves has no thread to leave behind.

Invariant: at most `AHEAD` chunks are on their way, so that a slow disk fills no memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from unbroken.format.buffers import Buffer
from unbroken.format.compression import BlobCodec, Compression, Compressor
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
    """

    def __init__(self, compression: Compression, is_new: Callable[[Digest], bool]) -> None:
        self._compression = compression
        self.is_new = is_new
        self._local = threading.local()
        self._pool = Crew(THREADS, "unbroken-chunks")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def run(self, chunks: Iterable[tuple[Tag, Buffer]]) -> Iterator[tuple[Tag, Digest, StoredBlob | None]]:
        """Yield for each chunk, in order, its digest, and what to store if it is new."""
        waiting: deque[tuple[Tag, Future[tuple[Digest, StoredBlob | None]]]] = deque()
        for tag, chunk in chunks:
            waiting.append((tag, self._pool.submit(self._prepared, chunk)))
            if len(waiting) >= AHEAD:
                first, future = waiting.popleft()
                yield first, *future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, *future.result()

    def _prepared(self, chunk: Buffer) -> tuple[Digest, StoredBlob | None]:
        digest = digest_of(chunk)
        if not self.is_new(digest):
            return digest, None
        codec, content = self._compressor().compress(chunk)
        return digest, StoredBlob(digest, memoryview(chunk).nbytes, codec, content)

    def _compressor(self) -> Compressor:
        found: Compressor | None = getattr(self._local, "compressor", None)
        if found is None:
            found = self._local.compressor = Compressor(self._compression)
        return found
