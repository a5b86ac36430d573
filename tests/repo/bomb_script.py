"""Reads the run in `argv[1]` as a start does, and as `unbroken verify` does, within a limit of memory and time.

Writes what came of it: an error's class and words, or "read".
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable

from unbroken.errors import UnbrokenError
from unbroken.repo.repository import Repository

ROOM = 768 << 20
SECONDS = 60


def outcome(do: Callable[[], object]) -> str:
    """Do something and return what came of it."""
    try:
        found = do()
    except UnbrokenError as error:
        return f"{type(error).__name__}: {error.message}"
    return "read" if not isinstance(found, list) else "; ".join(map(str, found)) or "whole"


def main(root: str) -> None:
    """Read the newest checkpoint twice."""
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, taken + ROOM))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    repository = Repository.open(root, "run")
    commit = repository.commits()[0]
    print(outcome(lambda: repository.load(commit)))
    print(outcome(lambda: repository.verify(commit)))


if __name__ == "__main__":
    main(sys.argv[1])
