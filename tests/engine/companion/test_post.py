"""Messages outlive their sender, and an end is seen even where somebody keeps the line open."""

from __future__ import annotations

import os

from unbroken.engine.companion.post import Post


def memory(content: bytes) -> int:
    descriptor = os.memfd_create("test")
    os.write(descriptor, content)
    return descriptor


def send(post: Post, content: bytes) -> None:
    descriptor = memory(content)
    post.send([descriptor])
    os.close(descriptor)


def read(message: list[int] | None) -> bytes:
    assert message is not None
    (descriptor,) = message
    try:
        return os.pread(descriptor, 100, 0)
    finally:
        os.close(descriptor)


def test_what_was_sent_comes_after_the_end_of_its_sender() -> None:
    ours, theirs = Post.pair()
    send(ours, b"one")
    send(ours, b"two")
    ours.close()
    assert [read(theirs.receive()), read(theirs.receive())] == [b"one", b"two"]
    assert theirs.receive() is None
    theirs.close()


def test_and_also_if_the_sender_has_left_mail_unread() -> None:
    """Linux tells that once, in the place of the next message."""
    ours, theirs = Post.pair()
    send(theirs, b"unread")
    send(ours, b"last")
    ours.close()
    assert read(theirs.receive()) == b"last"
    assert theirs.receive() is None
    theirs.close()


def test_the_end_of_the_other_process_ends_it_too_once_all_is_read() -> None:
    ours, theirs = Post.pair()
    end, ending = os.pipe()
    os.close(ending)  # readable from now on, as a pidfd is
    send(ours, b"last")
    assert read(theirs.receive(unless=end)) == b"last"
    assert theirs.receive(unless=end) is None, "though somebody keeps the line open"
    os.close(end)
    ours.close()
    theirs.close()


def test_a_forked_child_has_none() -> None:
    ours, theirs = Post.pair()
    child = os.fork()
    if child == 0:
        os._exit(0 if ours.descriptor == theirs.descriptor == -1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ours.close()
    assert theirs.receive() is None
    theirs.close()


def test_what_is_received_does_not_reach_programs_that_are_started() -> None:
    ours, theirs = Post.pair()
    send(ours, b"x")
    message = theirs.receive()
    assert message is not None
    assert not os.get_inheritable(message[0])
    os.close(message[0])
    ours.close()
    theirs.close()
