"""A process that has imported what quickstarts need, and runs each start of one in a child of its own.

Imports take seconds and children milliseconds. An order is a line of JSON, the answer the child's exit status.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from importlib import import_module

from tests.quickstart import mortal


def child(order: dict[str, str]) -> int:
    os.chdir(order["folder"])
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # the orders are the parent's
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        mortal.run(order["script"], kill_at=int(order["kill_at"]), cold=order["cold"], arguments=[])
    except BaseException:  # noqa: BLE001 - told, and the child ends
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def warm_up() -> None:
    """Import what PyTorch imports only at the first step of an optimizer, once for all children."""
    torch = import_module("torch")
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    torch.optim.Adam([weight]).step()


def main() -> None:
    for name in sys.argv[1:]:
        import_module(name)
    warm_up()
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if not pid:
            os._exit(child(order))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
