"""`python -m fuzz.slice`: a bounded part of the fuzzing, the same inputs every time, without atheris.

Prints a line of JSON: for each decoder how many inputs it has accepted and how many refused, and what was found.
"""

from __future__ import annotations

import json
import resource
import sys
import zlib
from random import Random

from fuzz.decoders import DECODERS, mutated
from fuzz.guard import Finding, Guard

INPUTS = 800
FEWER = {"laid-over": 250, "configuration": 80, "index": 400}
ROOM = 2 << 30


def main(seed: int) -> None:
    """Fuzz every decoder a little."""
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, taken + ROOM))
    guard = Guard()
    told: dict[str, dict[str, object]] = {}
    for name, decoder in DECODERS.items():
        start = [*decoder.seeds()]
        random = Random(zlib.crc32(name.encode()) + seed)
        guard.warm(
            decoder.decode,
            [*start, b"", b"{", b"{}", *(mutated(decoder, start, Random(i)) for i in range(30))],
        )
        accepted, findings, inputs = 0, list[str](), FEWER.get(name, INPUTS)
        for _ in range(inputs):
            data = mutated(decoder, start, random)
            try:
                accepted += guard.check(decoder.decode, data)
            except Finding as finding:
                findings.append(f"{finding}: {data[:300]!r}")
        told[name] = {
            "accepted": accepted,
            "refused": inputs - accepted - len(findings),
            "found": findings[:5],
        }
    print(json.dumps(told))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
