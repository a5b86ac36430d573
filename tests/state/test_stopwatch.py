"""Times of things of which one is done inside another add up to the whole."""

from __future__ import annotations

from unbroken.state.stopwatch import Stopwatch


def test_what_is_done_inside_of_something_else_counts_for_itself() -> None:
    now = iter([0.0, 1.0, 3.0, 7.0, 100.0])
    watch = Stopwatch(lambda: next(now))
    for name in ("outer", "inner", "outer"):
        watch.switch(name)
    watch.stop()
    watch.stop()
    watch.switch("later")
    assert watch.seconds == {"outer": 5.0, "inner": 2.0, "later": 0.0}
