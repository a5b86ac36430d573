"""Decoders that are wrong on purpose, each under the guard of the fuzzer. Prints what was found for each."""

from __future__ import annotations

import json
import resource
import time

from fuzz import guard
from fuzz.guard import Finding, Guard
from unbroken.errors import CorruptObject

ROOM = 256 << 20


def refuses(_: bytes) -> object:
    raise CorruptObject("It is damaged.")


def takes_long(_: bytes) -> None:
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass


WRONG = {
    "another error": lambda data: data[10],
    "runs code": eval,
    "opens a file": lambda _: open("/etc/passwd").close(),
    "imports": lambda _: __import__("this_is_no_module"),
    "takes memory": lambda _: len(bytearray(1 << 40)),
    "takes long": takes_long,
    "accepts": len,
    "refuses": refuses,
}


def main() -> None:
    """Show each of them one input."""
    guard.SECONDS = 0.2
    watch = Guard()
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, taken + ROOM))
    told: dict[str, str] = {}
    for name, decode in WRONG.items():
        try:
            told[name] = str(watch.check(decode, b"1+1"))
        except Finding as finding:
            told[name] = f"found: {finding}"
    print(json.dumps(told))


if __name__ == "__main__":
    main()
