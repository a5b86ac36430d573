"""What holds for every test."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from tests.process_state import left_as_found

# A shell starts its background jobs with SIGINT ignored, and whatever they start ignores it too. Some tests
# send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# An example that takes long, by the clock on the wall, says of a busy machine that it is busy. Without a deadline the first ten
# may be drawn for 30 seconds before Hypothesis calls a strategy too slow: on a busy machine, too, only one that is.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.fixture(scope="module", autouse=True)
def process_is_left_as_it_was_found() -> Iterator[None]:
    """Let no file find signals, variables or switches of a framework as another one has left them."""
    with left_as_found():
        yield


@pytest.fixture(scope="module", autouse=True)
def engines_left_open_hear_nothing_more(process_is_left_as_it_was_found: None) -> Iterator[None]:
    """Keep the signals that a later file sends to this process from engines that this one never closes.

    One of them would come to no clean point, and end whatever test runs when its grace is over.
    """
    yield
    from unbroken.engine import signals

    for listener in list(signals._handlers._listeners):
        signals.forget(listener)


@pytest.fixture(scope="session", autouse=True)
def event_files_are_read_as_they_were_written() -> None:
    """Let the numbers that TensorBoard's writers of one process give their files have equally many digits.

    Files of one second are read in the order of their names, where 10 comes before 9.
    """
    try:
        writers: Any = importlib.import_module("tensorboard.summary.writer.event_file_writer")
    except ImportError:
        return
    writers._global_uid = writers.AtomicCounter(1_000_000)
