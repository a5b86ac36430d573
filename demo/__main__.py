"""The demo: two trainings, each killed three times, compared with the undisturbed run.

Each training runs three times: undisturbed; killed and resumed by Unbroken; and killed at the same
moments and resumed by SB3's own save and load. The last line is `bit-exact: yes` (exit status 0) or
`bit-exact: no` (1). `DEMO_SEED` repeats the moments of a former demo.
"""

from __future__ import annotations

import fcntl
import os
import random
import secrets
import shutil
import sys
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from demo.lane import Lane, LaneFailed, draw_moments, run_lane
from demo.picture import Panel, draw
from demo.tasks import TASKS, Task
from demo.verdict import Departure, add_rows, depart, new_table
from unbroken.errors import ConfigError, UnbrokenError
from unbroken.proving.roots import compare_finals
from unbroken.report.comparison import comparison_table

OUT = Path(__file__).parent / "out"
PICTURE = Path(__file__).parent / "report.png"
KILLS = 3


@dataclass(frozen=True, slots=True)
class Result:
    """One training: its three runs, and how far the killed ones depart from the undisturbed one."""

    panel: Panel
    unbroken: Departure
    sb3: Departure


def run_task(name: str, task: Task, seed: str, progress: Progress) -> Result:
    generator = random.Random(f"{seed} {name}")
    # The first kill comes well after the first save, so that there is something to go on from.
    moments = draw_moments(
        generator, count=KILLS, first=task.interval * 3 // 2, last=task.timesteps - task.interval // 2
    )

    def lane(script: str, label: str, *, killed: bool) -> Lane:
        bar = progress.add_task(f"{task.title}: {label}", total=task.timesteps)
        done = run_lane(
            script,
            name,
            OUT / name / label,
            moments if killed else (),
            watch=lambda step: progress.update(bar, completed=step),
        )
        progress.remove_task(bar)
        kills = f", killed at {', '.join(f'{step:,}' for step in done.kills)}" if killed else ""
        progress.console.print(f"  {task.title}: {label}{kills} ({done.seconds:.0f} s)", highlight=False)
        return done

    undisturbed = lane("demo.train", "undisturbed", killed=False)
    unbroken = lane("demo.train", "unbroken", killed=True)
    sb3 = lane("demo.train_sb3", "sb3", killed=True)
    if not any(unbroken.trail.starts):
        raise LaneFailed(f"{task.title}: no start went on from a checkpoint, so this would prove nothing.")
    finals = compare_finals(undisturbed.folder / "runs", unbroken.folder / "runs")
    return Result(
        Panel(task.title, undisturbed, unbroken, sb3),
        depart(undisturbed, unbroken, finals=finals),
        depart(undisturbed, sb3),
    )


@contextmanager
def alone(folder: Path) -> Generator[None, None, None]:
    """Hold `folder` for this demo: two at once would write over each other's runs."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                "Another demo is running in this checkout.", hint="Wait for its end, or use another checkout."
            ) from None
        yield
    finally:
        os.close(descriptor)


def run_demo(seed: str, console: Console) -> list[Result]:
    """Run both trainings side by side, in all their ways."""
    shutil.rmtree(OUT, ignore_errors=True)
    console.print(
        f"Two trainings, {KILLS} kills each (seed {seed}); about two minutes on two cores.", highlight=False
    )
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
        ThreadPoolExecutor(len(TASKS)) as pool,
    ):
        waiting = [pool.submit(run_task, name, task, seed, progress) for name, task in TASKS.items()]
        return [future.result() for future in waiting]


def show(results: Sequence[Result], console: Console) -> None:
    """Print the tables and draw the picture."""
    table = new_table()
    for result in results:
        rows = {"Unbroken": (result.panel.unbroken, result.unbroken), "SB3": (result.panel.sb3, result.sb3)}
        add_rows(table, result.panel.title, rows)
    console.print()
    table.print_to(console)
    for result in results:
        for final in result.unbroken.finals or ():
            title = f"{result.panel.title}: last checkpoint of the killed run against the undisturbed one"
            console.print()
            comparison_table(final.components, title=title).print_to(console)
    draw([result.panel for result in results], PICTURE)
    console.print(f"\nReward curves: {PICTURE}", highlight=False, soft_wrap=True)


def main() -> int:
    # From the environment, since `unbroken demo` and `make demo` pass no arguments on.
    seed = os.environ.get("DEMO_SEED") or str(secrets.randbelow(10_000))
    console = Console()
    exact = False
    try:
        with alone(Path(__file__).parent):
            results = run_demo(seed, console)
            show(results, console)
        exact = all(result.unbroken.none for result in results)
    except (LaneFailed, UnbrokenError) as error:
        print(error, file=sys.stderr)
    print(f"bit-exact: {'yes' if exact else 'no'}")
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
