"""The command.

`python -m exactness` proves every cell and writes docs/exactness.md, with its data in a file beside it.
`--only PPO --only lunar` proves some and prints their rows; with `--merge` they take their place on the page.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType

import msgspec

from benchmarks.machine import commit
from exactness import machine, matrix, page
from exactness.cell import Cell
from exactness.oracle import Oracle
from exactness.records import Results, Row

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "exactness.md"


class Bench:
    """Proves cells on several threads, each with interpreters of its own."""

    def __init__(self, folder: Path, *, seed: int, jobs: int) -> None:
        self._folder = folder
        self._seed = seed
        self._jobs = jobs
        self._mine = threading.local()
        self._all: list[Oracle] = []
        self._done = 0

    def prove(self, cells: Sequence[Cell]) -> list[Row]:
        """Return a row for each cell, in their order."""
        total = len(cells)

        def one(cell: Cell) -> Row:
            oracle = getattr(self._mine, "oracle", None)
            if oracle is None:
                oracle = self._mine.oracle = Oracle(self._folder, seed=self._seed)
                self._all.append(oracle)
            row = oracle.prove(cell)
            self._done += 1
            outcome = f"as claimed ({row.claim})" if row.holds else f"DOES NOT HOLD: {row.reason}"
            print(
                f"[{self._done}/{total}] {cell.key}: {outcome}, {row.seconds:.0f} s",
                file=sys.stderr,
                flush=True,
            )
            return row

        try:
            with ThreadPoolExecutor(self._jobs) as pool:
                return list(pool.map(one, cells))
        finally:
            for oracle in self._all:
                oracle.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove cells; the exit status is 0 if all hold."""
    parser = _parser()
    given = parser.parse_args(arguments)
    cells = matrix.chosen(given.only)
    if given.list:
        print("\n".join(cell.key for cell in cells))
        return 0
    if not cells:
        parser.error(f"no cell is called {' or '.join(given.only)}; --list names them")
    lacking = {name for cell in cells for name in matrix.missing(cell)}
    if lacking:
        parser.error(f"not installed: {', '.join(sorted(lacking))}")
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="exactness-", dir=given.folder))
    rows = Bench(folder, seed=given.seed, jobs=given.jobs).prove(cells)
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    at = commit(ROOT, "exactness")
    for row in rows:
        row.date, row.commit = now, at
    results = Results(
        date=now,
        commit=at,
        seconds=time.monotonic() - began,
        seed=given.seed,
        jobs=given.jobs,
        machine=machine.describe(),
        rows=rows,
    )
    out = given.out or (PAGE if given.merge or not given.only else None)
    if given.merge and out is not None and out.with_suffix(".json").exists():
        earlier = msgspec.json.decode(out.with_suffix(".json").read_bytes(), type=Results)
        results = page.merged(earlier, results, order=list(matrix.BY_KEY))
    if out is None:
        print(page.tables(rows))
    else:
        out.write_text(page.render(results), encoding="utf-8")
        out.with_suffix(".json").write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    failed = [row for row in rows if not row.holds]
    if failed:
        print(f"{len(failed)} of {len(rows)} do not hold; their runs are kept in {folder}", file=sys.stderr)
    elif not any(folder.iterdir()):
        folder.rmdir()
    return 1 if failed else 0


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m exactness",
        description="Prove by killing that trainings are resumed exactly: all cells of the matrix, onto the page"
        " docs/exactness.md, or those that --only names, whose rows are printed.",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="cells whose name, as --list gives it, has this in it (contrib, lunar) or fits it as a pattern"
        " ('PPO/*', '*workers'), upper or lower case; may be given again",
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="print the names of all cells, one a line, or of those that --only chooses; nothing is trained",
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many cells at a time (default: 2)")
    parser.add_argument("--seed", type=int, default=7, help="draws the moments of the kills (default: 7)")
    parser.add_argument(
        "--folder", help="where the runs are kept while they last (default: that for temporary files)"
    )
    parser.add_argument(
        "--merge", action="store_true", help="put the rows into the page, where they stood before"
    )
    parser.add_argument("--out", type=Path, help="the page; its data goes beside it, as .json")
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    raise SystemExit(main())
