"""`python -m fuzz`: every decoder under atheris, each in a process of its own, until a number of inputs is reached.

Each process has a bound of memory, and each input one of time. An input for which something does not hold is kept, and the
command ends with status 1. The mutations are those of `fuzz.mutations`; atheris chooses which inputs lead further, by
the branches of the decoders that they reach.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

TOTAL = 1_100_000
ROOM = 3 << 30
"""Bytes of address space beside what a decoder's process has when it starts."""
INSTRUMENTED = (
    "unbroken.format", "unbroken.repo.seal", "unbroken.repo.birth", "unbroken.state.pickles", "unbroken.state.dtypes",
    "unbroken.state.planning", "unbroken.adapters.nemo_gym.frames", "unbroken.engine.configuration.place",
)  # fmt: skip
"""Modules whose branches are counted. All of the package would take longer to prepare than to fuzz."""
_DONE = re.compile(r"Done (\d+) (?:runs )?in")


def main() -> int:
    """Fuzz the decoders that were asked for; return the status of the process."""
    parser = argparse.ArgumentParser(
        prog="fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=TOTAL, help="inputs in all")
    parser.add_argument("--only", action="append", default=[], help="a decoder; may be given again")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--seed", type=int, default=1, help="another one tries other inputs")
    parser.add_argument(
        "--found", type=Path, default=Path("fuzz/found"), help="where inputs that fail are kept"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument(
        "inputs", nargs="*", type=Path, help="with one --only: decode these files, and no others"
    )
    given = parser.parse_args()
    if given.child:
        return child(given.child, given.runs, given.seed, given.found)
    if given.inputs:
        return again(given.only, given.inputs)
    return everything(given.only, given.runs, given.jobs, given.seed, given.found)


def everything(only: list[str], total: int, jobs: int, seed: int, found: Path) -> int:
    """Fuzz decoders side by side and print a line for each."""
    from fuzz.decoders import DECODERS

    chosen = [DECODERS[name] for name in only] if only else list(DECODERS.values())
    whole = sum(one.share for one in chosen)
    wanted = {one.name: int(total * one.share / whole) + 1 for one in chosen}
    found.mkdir(parents=True, exist_ok=True)

    def run(name: str) -> tuple[str, int, float, str]:
        began = time.monotonic()
        words = [
            sys.executable,
            "-m",
            "fuzz",
            "--child",
            name,
            "--runs",
            str(wanted[name]),
            "--seed",
            str(seed),
        ]
        done = subprocess.run(
            [*words, "--found", str(found.absolute())],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        said = _DONE.findall(done.stderr)
        runs = int(said[-1]) if said else 0
        bad = (
            "" if done.returncode == 0 and runs >= wanted[name] else done.stderr[-3000:] or "it said nothing"
        )
        return name, runs, time.monotonic() - began, bad

    failed: dict[str, str] = {}
    inputs = 0
    print(f"{'decoder':<18}{'inputs':>10}{'seconds':>9}")
    with ThreadPoolExecutor(jobs) as pool:
        for name, runs, seconds, bad in pool.map(run, sorted(wanted, key=lambda one: -wanted[one])):
            inputs += runs
            print(
                f"{name:<18}{runs:>10,}{seconds:>9.0f}  {'FOUND SOMETHING' if bad else ''}".rstrip(),
                flush=True,
            )
            if bad:
                failed[name] = bad
    print(f"{'all':<18}{inputs:>10,}")
    for name, words in failed.items():
        print(f"\n{name}, kept in {found}:\n{words}", file=sys.stderr)
    return 1 if failed else 0


def child(name: str, runs: int, seed: int, found: Path) -> int:
    """Fuzz one decoder in this process."""
    atheris: Any = importlib.import_module("atheris")  # there are wheels of it for one Python only
    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        from fuzz.decoders import DECODERS, mutated
    from fuzz.guard import Guard

    decoder = DECODERS[name]
    start = [*decoder.seeds()]
    guard = Guard()
    guard.warm(
        decoder.decode, [*start, b"", b"{", b"{}", *(mutated(decoder, start, Random(i)) for i in range(50))]
    )
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, taken + ROOM))

    def one(data: bytes) -> None:
        guard.check(decoder.decode, data)

    def mutate(data: bytes, most: int, number: int) -> bytes:
        random = Random(number)
        # Now and then from the start: what leads further is kept, and would be all that is ever changed.
        base = random.choice(start) if random.random() < 0.3 else data
        return decoder.mutate(base, random)[:most]

    with tempfile.TemporaryDirectory() as corpus:
        for i, data in enumerate(start):
            Path(corpus, f"{i:04d}").write_bytes(data)
        options = [
            f"-runs={runs}", f"-seed={seed}", "-max_len=65536", "-timeout=30", "-rss_limit_mb=4096", "-print_final_stats=0",
            "-verbosity=1", "-reload=0", "-close_fd_mask=0", f"-artifact_prefix={found / name}-", corpus,
        ]  # fmt: skip
        atheris.Setup([sys.argv[0], *options], one, custom_mutator=mutate)
        atheris.Fuzz()  # ends the process
    return 0


def again(only: list[str], inputs: list[Path]) -> int:
    """Decode inputs that were kept, and let what they raise be seen."""
    from fuzz.decoders import DECODERS
    from fuzz.guard import Guard

    (name,) = only
    decoder = DECODERS[name]
    guard = Guard()
    guard.warm(decoder.decode, [*decoder.seeds(), b"", b"{", b"{}"])
    for path in inputs:
        print(
            path, "is accepted" if guard.check(decoder.decode, path.read_bytes()) else "is refused in words"
        )
    return 0


if __name__ == "__main__":
    os.chdir(Path(__file__).parent.parent)
    sys.exit(main())
