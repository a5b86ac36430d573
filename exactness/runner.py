"""A process that has imported everything and runs each order, a line of JSON, in a child of its own.

It answers with the child's exit status. Imports take seconds and children milliseconds; a resumed run gets its
child from another runner than the killed one: another interpreter, with another hash seed.

Invariant: when an order is answered, nothing that its child has started is left.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback

import msgspec
import torch

from exactness.training import Order, carry_out

LOOK_S = 0.005


def warm_up() -> None:
    """Import what PyTorch imports only at the first step of an optimizer, once for all children."""
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    torch.optim.Adam([weight]).step()


def child(order: Order) -> int:
    """Carry out an order in the forked process."""
    os.setsid()
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # the orders are the parent's
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        carry_out(order)
    except BaseException:  # noqa: BLE001 - told, and the child ends
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def wait(pid: int, limit: float) -> int:
    """Wait for a child, at most `limit` seconds, then end it; end whatever it has left; return its status."""
    until = time.monotonic() + limit
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
    for line in sys.stdin:
        order = msgspec.json.decode(line, type=Order)
        pid = os.fork()
        if not pid:
            os._exit(child(order))
        print(wait(pid, order.limit), flush=True)


if __name__ == "__main__":
    main()
