"""A process that has imported everything and runs each order, a line of JSON, in a child of its own (`forked`).

Invariant: when an order is answered, nothing that its child has started is left.
"""

from __future__ import annotations

import os
import signal
import time
from functools import partial

import msgspec

from exactness.forked import serve, warm_up
from exactness.training import Order, carry_out

LOOK_S = 0.005


def child(order: Order) -> None:
    """Carry out an order in the forked process."""
    os.setsid()
    carry_out(order)


def wait(pid: int, order: Order) -> int:
    """Wait for a child, at most as long as its order allows, then end it; end whatever it has left; return its status."""
    until = time.monotonic() + order.limit
    while not (ended := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            until = float("inf")
        time.sleep(LOOK_S)
    assert ended is not None
    try:
        # Before it is reaped: until then its number, and that of its group, can be nobody else's.
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def main() -> None:
    warm_up()
    serve(partial(msgspec.json.decode, type=Order), child, log=lambda order: order.log, wait=wait)


if __name__ == "__main__":
    main()
