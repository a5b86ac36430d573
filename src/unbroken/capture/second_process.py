"""A copy of this process, made before anything happened, that answers questions about what did.

What one process says must be repeatable in another: an address, an index into a table or a number of a
snapshot in a simulator's memory means something only where it was made. The copy shares nothing that came
into being after it.

For a process of its own with one thread. The copy ends with it, or when it is closed. Not promised: an
answer from a copy that crashes; that it has none is the answer.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import NoReturn

_SIZE = 8


class NoAnswer(Exception):
    """The copy has ended instead of answering."""


class SecondProcess:
    """A copy of this process in which `answer` turns questions into answers, both as bytes."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        questions, self._ask = os.pipe()
        self._hear, answers = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._ask)
            os.close(self._hear)
            _serve(answer, questions, answers)
        os.close(questions)
        os.close(answers)

    def ask(self, question: bytes) -> bytes:
        """Return the answer. Raises NoAnswer if the copy has ended, or ends of the question."""
        try:
            _write(self._ask, question)
        except BrokenPipeError:
            raise NoAnswer from None
        answer = _read(self._hear)
        if answer is None:
            raise NoAnswer
        return answer

    def close(self) -> None:
        """End the copy, whatever it does."""
        os.close(self._ask)
        os.close(self._hear)
        # Not by the end of its questions alone: a child that this process has made since holds the pipe open.
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _serve(answer: Callable[[bytes], bytes], questions: int, answers: int) -> NoReturn:
    try:
        while (question := _read(questions)) is not None:
            _write(answers, answer(question))
    finally:
        os._exit(0)  # no finalizer of the process is the copy's to run


def _write(pipe: int, data: bytes) -> None:
    left = memoryview(len(data).to_bytes(_SIZE, "little") + data)
    while left:
        left = left[os.write(pipe, left) :]


def _read(pipe: int) -> bytes | None:
    """Return what was written, or None if the other side is closed."""
    size = _exactly(pipe, _SIZE)
    return None if size is None else _exactly(pipe, int.from_bytes(size, "little"))


def _exactly(pipe: int, size: int) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        piece = os.read(pipe, min(size - len(found), 1 << 20))
        if not piece:
            return None
        found += piece
    return bytes(found)
