"""A process that has imported everything and carries out each order, a line, in a child of its own: imports take seconds and children
milliseconds.

`serve` is that process's loop, `Forking` the process as others see it. A resumed run gets its child from another one than the killed
run: another interpreter, with another hash seed.

Invariant: a child never comes back into the loop of its parent, whatever it raises.

Not promised: that what a child has started is gone when it is; see `runner.wait`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

HERE = Path(__file__).parent.parent

T = TypeVar("T")


class Ended(Exception):
    """The process that forks has ended."""


class Forking:
    """A process that runs `words` (of `python words…`), which `serve`, and is told orders."""

    def __init__(self, *words: str, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=HERE,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            text=True,
        )

    def run(self, order: str) -> int:
        """Have an order carried out; return the exit status of the process that did it, as `subprocess` has it.

        Raises:
            Ended: there is no answer.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        answer = ""
        with suppress(BrokenPipeError):  # it has ended before it was told
            stdin.write(order + "\n")
            stdin.flush()
            answer = stdout.readline()
        if not answer:
            raise Ended("the process that forks for each start has ended")
        return int(answer)

    def close(self) -> None:
        self._process.communicate()


def serve(
    read: Callable[[str], T],
    carry_out: Callable[[T], object],
    *,
    log: Callable[[T], str],
    wait: Callable[[int, T], int] | None = None,
) -> None:
    """Carry out each order on the standard input, with what it says in its `log`, and answer with the exit status of its child.
    `wait` returns that."""
    for line in sys.stdin:
        order = read(line)
        pid = os.fork()
        if not pid:
            os._exit(_child(partial(carry_out, order), log(order)))
        status = wait(pid, order) if wait is not None else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(status, flush=True)


def _child(work: Callable[[], object], log: str) -> int:
    try:
        said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        take([os.open(os.devnull, os.O_RDONLY), said, said])  # the orders are the parent's
        work()
    except BaseException:  # noqa: BLE001 - told, and the child ends
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def take(files: Sequence[int]) -> None:
    """Let these be the standard input, output and error of this process."""
    for place, file in enumerate(files):
        os.dup2(file, place)
    for file in set(files):
        os.close(file)


def warm_up() -> None:
    """Import what PyTorch imports only at the first step of an optimizer, once for all children."""
    import torch

    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    torch.optim.Adam([weight]).step()
