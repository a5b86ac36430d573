"""The demo: two trainings, each killed three times, compared with the undisturbed run.

Each training runs three times: undisturbed; killed and resumed by Unbroken; and killed at the same
moments and resumed by SB3's own save and load. The last line is `bit-exact: yes` (exit status 0) or
`bit-exact: no` (1).
"""

from __future__ import annotations

import argparse
import random
import secrets
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from demo.lane import Lane, LaneFailed, draw_moments, run_lane
from demo.picture import Panel, draw
from demo.tasks import TASKS, Task
from demo.verdict import Departure, add_rows, depart, new_table
from unbroken.errors import UnbrokenError
from unbroken.proving.roots import compare_finals
from unbroken.report.comparison import comparison_table

HERE = Path(__file__).parent
KILLS = 3


@dataclass(frozen=True, slots=True)
class Result:
    """One training: its three runs, and how far the killed ones depart from the undisturbed one."""

    panel: Panel
    unbroken: Departure
    sb3: Departure


def run_task(name: str, task: Task, out: Path, seed: str, console: Console) -> Result:
    generator = random.Random(f"{seed} {name}")
    # The first kill comes after the first save, so that SB3's way has something to load.
    moments = draw_moments(
        generator, count=KILLS, first=task.interval + 100, last=task.timesteps - task.interval // 2
    )

    def lane(script: str, label: str, *, killed: bool) -> Lane:
        done = run_lane(script, name, out / name / label, moments if killed else ())
        kills = f", killed at {', '.join(f'{step:,}' for step in done.kills)}" if killed else ""
        console.print(f"  {task.title}: {label}{kills} ({done.seconds:.0f} s)", highlight=False)
        return done

    undisturbed = lane("demo.train", "undisturbed", killed=False)
    unbroken = lane("demo.train", "unbroken", killed=True)
    sb3 = lane("demo.train_sb3", "sb3", killed=True)
    finals = compare_finals(undisturbed.folder / "runs", unbroken.folder / "runs")
    return Result(
        Panel(task.title, undisturbed, unbroken, sb3),
        depart(undisturbed, unbroken, finals=finals),
        depart(undisturbed, sb3),
    )


def run_demo(out: Path, picture: Path, seed: str, console: Console) -> bool:
    """Run everything, print the table, write the picture; return whether Unbroken's runs are bit-exact."""
    shutil.rmtree(out, ignore_errors=True)
    console.print(
        f"Two trainings, {KILLS} kills each (seed {seed}); about two minutes on two cores.", highlight=False
    )
    with ThreadPoolExecutor(len(TASKS)) as pool:
        waiting = [pool.submit(run_task, name, task, out, seed, console) for name, task in TASKS.items()]
        results = [future.result() for future in waiting]

    table = new_table()
    for result in results:
        rows = {"Unbroken": (result.panel.unbroken, result.unbroken), "SB3": (result.panel.sb3, result.sb3)}
        add_rows(table, result.panel.title, rows)
    console.print()
    table.print_to(console)
    draw([result.panel for result in results], picture)
    console.print()
    for result in results:
        for final in result.unbroken.finals or ():
            title = f"{result.panel.title}: the last checkpoint of the killed run against the undisturbed one"
            comparison_table(final.components, title=title).print_to(console)
    console.print(f"Reward curves: {picture}", highlight=False, soft_wrap=True)
    return all(result.unbroken.none for result in results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seed", default=str(secrets.randbelow(10_000)), help="repeats the moments of a former demo"
    )
    parser.add_argument(
        "--out", type=Path, default=HERE / "out", help="where the runs are kept; emptied first"
    )
    parser.add_argument("--picture", type=Path, default=HERE / "report.png")
    options = parser.parse_args()
    console = Console()
    try:
        exact = run_demo(options.out, options.picture, options.seed, console)
    except (LaneFailed, UnbrokenError) as error:
        print(error, file=sys.stderr)
        exact = False
    print(f"bit-exact: {'yes' if exact else 'no'}")
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
