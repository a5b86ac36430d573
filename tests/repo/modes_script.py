"""Trains under the umask in `argv[2]` in the root `argv[1]`, with the writer `argv[3]`, as the user `argv[4]`;
goes on where it stopped."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.engine.training import Training, engine_of, train


def main(root: str, umask: str, writer: str, user: str) -> None:
    """Train as another user, perhaps."""
    if user:
        # Here and not when it is started: an interpreter of one user alone cannot be started by another, and
        # once he is another he can import nothing more.
        with tempfile.TemporaryDirectory() as scratch:
            run(Path(scratch), writer)
        os.setgroups([int(user)])
        os.setgid(int(user))
        os.setuid(int(user))
    os.umask(int(umask, 8))
    print(run(Path(root), writer))


def run(root: Path, writer: str) -> int:
    """Do ten more steps, and save on the way; return the step at which it began."""
    training = Training()
    with engine_of(training, root, every=5, keep_last=2, writer=writer) as engine:
        start = engine.resume().step
        train(engine, training, start=start, until=start + 10)
    return start


if __name__ == "__main__":
    main(*sys.argv[1:])
