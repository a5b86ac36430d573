"""The command.

`python -m benchmarks` measures everything and writes docs/benchmarks.md, with its data in a file beside it.
With `--only a,c`, `--contenders Unbroken`, `--rows 2000` or `--quick` it measures a part, or smaller sizes,
and prints the page unless `--out` says where it goes, or `--merge` that it takes the place of the same part there.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType

import msgspec

from benchmarks import machine, merging, page
from benchmarks.child import Order, failed
from benchmarks.memory import ALLOCATOR
from benchmarks.plan import CONTENDERS, PARTS, jobs
from benchmarks.records import FULL, QUICK, GymJob, Job, RanksJob, Results, Row, Sizes

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
GYM_PYTHON = ROOT / os.environ.get("VENV_GYM", ".venv-gym") / "bin" / "python"
"""What `scripts/install-gym` makes."""


class Bench:
    """One run of the benchmarks in a temporary folder, which is removed whatever happens."""

    def __init__(self, folder: Path, sizes: Sizes, *, gym_python: Path) -> None:
        self._folder = folder
        self._gym_python = str(gym_python)
        self._sizes = sizes
        self._frames = folder / "frames.npy"

    def record_frames(self) -> None:
        """Play the games once for all processes: enough for every row of the buffer, and for the new ones."""
        count = self._sizes.frame_rows + self._sizes.frame_rows // 5 + 64
        if self._run(sys.executable, "-m", "benchmarks.frames", str(self._frames), str(count)):
            raise SystemExit("No frames could be recorded; see above.")

    def measure(self, wanted: list[Job]) -> list[Row]:
        """Measure some jobs in one new process; each gets a row, whatever happens to the process."""
        order, results = self._folder / "order.json", self._folder / "results.jsonl"
        asked = Order(
            jobs=wanted,
            sizes=self._sizes,
            frames=str(self._frames),
            folder=str(self._folder / "measured"),
        )
        order.write_bytes(msgspec.json.encode(asked))
        results.write_bytes(b"")
        python = self._gym_python if isinstance(wanted[0], GymJob) else sys.executable
        status = self._run(python, "-m", "benchmarks.child", str(order), str(results))
        rows: list[Row] = [msgspec.json.decode(line, type=Row) for line in results.read_bytes().splitlines()]
        shutil.rmtree(self._folder / "measured", ignore_errors=True)
        rest = wanted[len(rows) :]
        return rows + [failed(job, f"the measuring process ended with status {status}") for job in rest]

    def _run(self, python: str, *arguments: str) -> int:
        environment = {
            **os.environ,
            **({} if python == self._gym_python else ALLOCATOR),  # servers run as they do elsewhere
            "OMP_NUM_THREADS": str(self._sizes.threads),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
        }
        done = subprocess.run([python, *arguments], env=environment, stdout=sys.stderr, check=False)
        return done.returncode


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks; the exit status is 0 if everything came back that was saved."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.merge and given.quick:
        parser.error("figures of a quick run are none, and do not go into the page: leave out --merge")
    parts = given.only or [*PARTS]
    whole = not given.quick and not given.rows and not given.only and given.contenders == [*CONTENDERS]
    out = given.out or (PAGE if whole or given.merge else None)
    parts, missing = _measurable(parts, gym_python=given.gym_python)
    if missing and given.only:
        parser.error(missing)
    if missing:
        print(f"gym is left out: {missing}", file=sys.stderr)
    sizes = QUICK if given.quick else FULL
    if given.rows:
        sizes = msgspec.structs.replace(sizes, frame_rows=given.rows)
    wanted = jobs(parts, given.contenders)
    load, started = os.getloadavg()[0], time.monotonic()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bench-", dir=given.folder) as name:
        bench = Bench(Path(name), sizes, gym_python=given.gym_python)
        if not all(isinstance(job, RanksJob | GymJob) for job in wanted):
            bench.record_frames()
        groups = _groups(wanted, quick=given.quick)
        for number, group in enumerate(groups, 1):
            print(f"[{number}/{len(groups)}] {_names(group)}", file=sys.stderr)
            rows += bench.measure(group)
        about = machine.describe(Path(name))
    results = Results(
        command=shlex.join(["python", "-m", "benchmarks", *(arguments or sys.argv[1:])]),
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        seconds=time.monotonic() - started,
        load_before=load,
        load_after=os.getloadavg()[0],
        quick=given.quick,
        sizes=sizes,
        machine=about,
        rows=rows,
        commit=machine.commit(ROOT),
    )
    if given.merge and out is not None:
        results = merging.merge(out.with_suffix(".json").read_bytes(), results, parts=parts)
    text = page.render(results)
    if out is None:
        print(text)
    else:
        out.write_text(text, encoding="utf-8")
        out.with_suffix(".json").write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    wrong = [row for row in rows if row.failure or not row.verified]
    for row in wrong:
        print(f"not verified: {row}", file=sys.stderr)
    return 1 if wrong else 0


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # so that the temporary folder goes, and with it gigabytes


def _measurable(parts: list[str], *, gym_python: Path) -> tuple[list[str], str]:
    """Return the parts that can be measured, and in a sentence what one lacks that cannot."""
    if "gym" not in parts or gym_python.exists():
        return parts, ""
    lacks = f"{gym_python} is not there, which the part gym runs in: scripts/install-gym makes it"
    return [part for part in parts if part != "gym"], lacks


def _groups(wanted: list[Job], *, quick: bool) -> list[list[Job]]:
    """Return which jobs share a process."""
    if not quick:
        return [[job] for job in wanted]
    # One for all that one Python can do, since imports would take most of the time.
    alike: tuple[list[Job], list[Job]] = ([], [])
    for job in wanted:
        alike[isinstance(job, GymJob)].append(job)
    return [group for group in alike if group]


def _names(group: list[Job]) -> str:
    return str(group[0]) if len(group) == 1 else f"{len(group)} rows in one process"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="parts:\n"
        + "\n".join(f"  {name:8} {about}" for name, about in PARTS.items())
        + f"\ncontenders:\n  {', '.join(CONTENDERS)}",
    )
    parser.add_argument("--only", type=_one_of(PARTS), help="parts, with commas between them (default: all)")
    parser.add_argument(
        "--contenders", type=_one_of(CONTENDERS), default=list(CONTENDERS), help="and who, in the same way"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: everything works, nothing is timed")
    parser.add_argument("--rows", type=int, default=0, help="rows of the frame buffer (default 20,000)")
    parser.add_argument(
        "--folder", help="where to write: the disk to measure (default: that for temporary files)"
    )
    parser.add_argument(
        "--gym-python",
        type=Path,
        default=GYM_PYTHON,
        help=f"Python that has NeMo Gym (default: {GYM_PYTHON})",
    )
    parser.add_argument(
        "--merge", action="store_true", help="put what is measured into the page, where it stood before"
    )
    parser.add_argument("--out", type=Path, help="the page; its data goes beside it, as .json")
    return parser


def _one_of(known: Collection[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"nothing is called {unknown[0]!r}; there are {', '.join(known)}"
            )
        return names

    return parse


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    raise SystemExit(main())
