"""Environment workers that outlived their trainer.

Workers started by fork hold the ends of each other's pipes and never see that the trainer is gone: they
would keep memory, and files of Monitor, for ever. Who they are is on record from the start of a training;
the next start of the run ends exactly those that still are these processes, if their trainer is no more.

Not promised: workers of a process that was killed before it had come to its first rollout.
"""

from __future__ import annotations

import os
import signal

from unbroken.repo.workers import Workers


def reap(recorded: Workers | None) -> list[int]:
    """End the workers of the last trainer that are still there, and return their process ids."""
    # Both times nothing but a certain answer: a number alone may belong to anybody by now.
    if recorded is None or recorded.trainer.is_alive() is not False:
        return []
    ended: list[int] = []
    for worker in recorded.workers:
        if worker.is_alive() is True:
            try:
                os.kill(worker.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue  # gone meanwhile, or another user's: no reason to keep this one from starting
            ended.append(worker.pid)
    return ended
