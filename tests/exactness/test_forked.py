"""The process that forks for each start, as those see it who tell it orders."""

from __future__ import annotations

from contextlib import closing

import pytest

from exactness.forked import Ended, Forking

READS = "import sys; sys.stdin.readline()"


def test_one_that_has_ended_before_it_is_told_is_said_to_have_ended() -> None:
    with closing(Forking("-c", "", environment={})) as process:
        process._process.wait()
        with pytest.raises(Ended, match="has ended"):
            process.run("an order")


def test_one_that_ends_without_an_answer_is_said_to_have_ended() -> None:
    with closing(Forking("-c", READS, environment={})) as process, pytest.raises(Ended, match="has ended"):
        process.run("an order")
