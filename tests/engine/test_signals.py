"""What this process catches: a signal between any two lines of giving the signals back kills nobody."""

from __future__ import annotations

import os
import signal
from typing import Any

from tests.engine.children import in_child
from unbroken.engine import signals


class Striking(dict[Any, Any]):
    """Listeners of which none leaves without a signal that comes at this very moment."""

    def pop(self, *arguments: Any) -> Any:
        left = super().pop(*arguments)
        os.kill(os.getpid(), signal.SIGTERM)
        return left


def leave(linger: float) -> int:
    """Have a process of its own end its training in which a signal comes; return how it ended."""

    def body() -> None:
        heard: list[int] = []
        signals.listen({"SIGTERM"}, heard.append)
        handlers = signals._handlers
        handlers._listeners = Striking(handlers._listeners)
        signals.forget(heard.append, linger=linger)

    return in_child(body)


def test_a_signal_while_the_last_listener_leaves_kills_no_process_that_is_on_its_way_out() -> None:
    assert leave(60.0) == 0
    assert leave(0.0) == -signal.SIGTERM, "who was not told to end is killed as it always was"


def test_what_its_parent_was_told_is_without_effect_in_a_forked_child() -> None:
    def parent() -> None:
        heard: list[int] = []
        signals.listen({"SIGTERM"}, heard.append)
        signals.forget(heard.append, linger=60.0)
        assert leave(0.0) == -signal.SIGTERM

    assert in_child(parent) == 0
