"""Writing a content to an open file: a large one passes by the page cache.

A large write through the page cache costs fresh memory as large as itself, which after some idle seconds
is several times slower than the disk. So pieces are gathered in a few aligned blocks that are used again,
and full blocks are written with O_DIRECT by threads of their own, while the next is being filled. What
is small, the unaligned end, and everything on a file system that refuses O_DIRECT goes the usual way.

Not promised: durability. Whoever writes syncs the file afterwards; O_DIRECT replaces no sync.
"""

from __future__ import annotations

import errno
import threading
from queue import SimpleQueue
from typing import TypeAlias

from unbroken.format.buffers import Content, pieces
from unbroken.store.blocks import ALIGNMENT, BLOCK, KEPT, Blocks
from unbroken.store.system import System
from unbroken.store.together import join, start

IN_FLIGHT = KEPT - 1
"""Blocks that are being written while one is filled."""
LEAST = 1 << 20
"""Contents below this are not worth the change of the mode."""

_Job: TypeAlias = "tuple[memoryview, int]"
"""A full block and where in the file it belongs."""


def write_content(system: System, file: int, data: Content, *, blocks: Blocks) -> None:
    """Write `data` to the empty file `file`. However it ends, nothing is being written any more then."""
    writer = _Writer(system, file, blocks)
    try:
        if isinstance(data, (bytes, bytearray, memoryview)) and memoryview(data).nbytes < LEAST:
            return writer.write(memoryview(data).cast("B"), 0)  # a record is not worth a block
        for piece in pieces(data):
            writer.add(memoryview(piece).cast("B"))
        return writer.finish()
    finally:
        writer.stop()


class _Writer:
    """Fills blocks; `IN_FLIGHT` threads write the full ones, from the first on that there is."""

    def __init__(self, system: System, file: int, blocks: Blocks) -> None:
        self._system = system
        self._file = file
        self._blocks = blocks
        self._direct = False
        self._block: memoryview | None = None
        self._filled = 0
        self._offset = 0
        self._taken = 0
        self._free: SimpleQueue[memoryview] = SimpleQueue()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def add(self, piece: memoryview) -> None:
        """Copy `piece`: whoever gave it may overwrite it afterwards."""
        while piece.nbytes:
            block = self._block = self._next_block() if self._block is None else self._block
            part = piece[: BLOCK - self._filled]
            block[self._filled : self._filled + part.nbytes] = part
            self._filled += part.nbytes
            piece = piece[part.nbytes :]
            if self._filled == BLOCK:
                self._send(block)

    def finish(self) -> None:
        """Write what is in the last block, and wait for the others."""
        if self._block is None:
            return self._wait()
        if not self._offset and self._filled >= LEAST:
            self._direct = self._system.set_direct(self._file, on=True)
        whole = self._filled - self._filled % ALIGNMENT if self._direct else 0
        self.write(self._block[:whole], self._offset)
        self._wait()
        if self._direct:
            self._leave_direct()
        return self.write(self._block[whole : self._filled], self._offset + whole)

    def stop(self) -> None:
        """End the threads, after what they are writing; give the memory back."""
        self._end_threads()
        if self._block is not None:
            self._blocks.give(self._block)
        while not self._free.empty():
            self._blocks.give(self._free.get())

    def _next_block(self) -> memoryview:
        if self._taken <= IN_FLIGHT and self._free.empty():
            self._taken += 1
            return self._blocks.take()
        block = self._free.get()
        self._raise()
        return block

    def _send(self, block: memoryview) -> None:
        if not self._offset:
            self._direct = self._system.set_direct(self._file, on=True)
        job = (block, self._offset)
        self._block = None
        self._filled = 0
        self._offset += BLOCK
        if len(self._threads) < IN_FLIGHT:
            self._start_thread()
        if self._threads:
            self._jobs.put(job)
        else:
            self._perform(job)

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name="unbroken-write")
        if start(thread):
            self._threads.append(thread)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._perform(job)

    def _perform(self, job: _Job) -> None:
        block, offset = job
        try:
            if not self._errors:
                self.write(block, offset)
        except BaseException as error:  # noqa: BLE001 - raised by the thread that asked, in `_raise`
            self._errors.append(error)
        finally:
            self._free.put(block)

    def write(self, view: memoryview, offset: int) -> None:
        """Write all of `view` at `offset`: one call may take only a part of it."""
        refused = False
        while view.nbytes:
            try:
                count = self._system.pwrite(self._file, view, offset)
            except OSError as error:
                # The file system has refused after all, or an earlier call has taken an odd part.
                if error.errno != errno.EINVAL or refused:
                    raise
                refused = True
                self._leave_direct()
            else:
                view = view[count:]
                offset += count

    def _leave_direct(self) -> None:
        self._direct = False
        self._system.set_direct(self._file, on=False)

    def _wait(self) -> None:
        self._end_threads()
        self._raise()

    def _raise(self) -> None:
        if self._errors:
            raise self._errors[0]

    def _end_threads(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        join(self._threads)
