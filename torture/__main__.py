"""The command: `python -m torture` runs all faults and writes docs/torture.md; `--only damage` runs some and prints.

Ends with 1 if anything was lost, wrong or without an end.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import commit as commit_of
from torture import bench
from torture.page import page
from torture.recovery import MOST_OPERATIONS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "torture.md"
_SHOWN = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(prog="torture", description=__doc__)
    parser.add_argument(
        "--only", action="append", default=[], metavar="WORD", help="kinds that hold this word"
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (2)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn (0)")
    parser.add_argument(
        "--every", type=int, default=1, metavar="N", help="only each N-th fault; writes no page"
    )
    asked = parser.parse_args(arguments)
    cases = [
        case
        for case in bench.gathered(seed=asked.seed)
        if not asked.only or any(word in case.kind for word in asked.only)
    ][:: asked.every]
    outcomes = bench.run(cases, jobs=asked.jobs)
    lines = bench.summed(cases, outcomes)
    for line in lines:
        print(
            f"{line.kind:50} {line.faults:6} faults {line.recovered:6} recovered"
            f" {line.lost:3} lost {line.wrong:3} wrong {line.hangs:3} hangs"
        )
    failures = [
        bench.Failure(case, outcome)
        for case, outcome in zip(cases, outcomes, strict=True)
        if outcome.verdict != "recovered"
    ]
    for failure in failures[:_SHOWN]:
        print(
            f"{failure.case.kind}, {failure.case.name}: {failure.outcome.verdict}: {failure.outcome.message}"
        )
    left_out = bench.left_out()
    for reason in left_out:
        print(f"left out: {reason}")
    print(f"{len(cases)} distinct faults, {len(cases) - len(failures)} recovered")
    if not asked.only and asked.every == 1:
        PAGE.write_text(
            page(
                lines,
                commit=commit_of(ROOT, "torture"),
                seed=asked.seed,
                bound=MOST_OPERATIONS,
                left_out=left_out,
            )
        )
        print(f"written: {PAGE}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
