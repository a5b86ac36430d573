"""One end of the connection between a training and its companion: descriptors of memory, sent both ways.

A message is nothing but descriptors, so it is sent whole or not at all, never waits, and what it stands
for is as large as it needs to be. What was sent can be received after the sender's death.

Not promised: that the other end's death is seen as the end of the connection while a process that it has
forked keeps the socket open. `Post` closes itself in children that Python forks.
"""

from __future__ import annotations

import os
import select
import socket
import weakref
from array import array
from collections.abc import Sequence

_ROOM = socket.CMSG_SPACE(2 * array("i").itemsize)
"""For the descriptors of one message, which are two at most."""
_FLAGS = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT if hasattr(socket, "MSG_CMSG_CLOEXEC") else 0


class Post:
    """One end. A forked child of its process has none."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        mine: weakref.ref[Post] = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forget(mine))

    @classmethod
    def pair(cls) -> tuple[Post, Post]:
        """Return both ends."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    @classmethod
    def inherited(cls, descriptor: int) -> Post:
        """Return the end that the parent process has passed on."""
        os.set_inheritable(descriptor, False)
        return cls(socket.socket(fileno=descriptor))

    @property
    def descriptor(self) -> int:
        """The socket's own, to be passed on."""
        return self._socket.fileno()

    def send(self, descriptors: Sequence[int]) -> None:
        """Send memory by its descriptors. It may be closed here afterwards.

        Raises BrokenPipeError or ConnectionResetError if the other end is gone.
        """
        socket.send_fds(self._socket, [b"\n"], descriptors)

    def receive(self, *, unless: int | None = None) -> list[int] | None:
        """Wait for a message and return its descriptors; None if none can come any more.

        None can come once the other end is closed, or `unless`, a descriptor of the process that holds it
        (a pidfd), says that this one is over. What had been sent before comes first.
        """
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if unless is not None:
            poll.register(unless, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._socket.fileno() not in ready:
                return None
            try:
                # Not `recv_fds`, which drops the flags before Python 3.13.
                data, extra, _, _ = self._socket.recvmsg(1, _ROOM, _FLAGS)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                continue  # told once, if it has died with unread mail; our own mail comes after that
            received = array("i")
            for _, _, content in extra:
                received.frombytes(content[: len(content) - len(content) % received.itemsize])
            return received.tolist() if data else None

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


def _forget(reference: weakref.ref[Post]) -> None:
    post = reference()
    if post is not None:
        post.close()
