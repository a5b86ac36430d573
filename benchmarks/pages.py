"""How long the server of `unbroken ui` takes for a page: of a run with 1,000 checkpoints, and of 10,000 sessions of NeMo Gym.

Each page is asked for once by a process that has never looked at the run, and then again; the last two lines are the work
of *Measure*, from its form to its end, and what `unbroken report` takes for its page. Processor time is what counts on a
machine that does other things, too; the browser's part is not in it. Run: `python -m benchmarks.pages`
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHECKPOINTS, SESSIONS = 1_000, 10_000
PAGES = (
    "/",
    "/runs/many",
    "/runs/many?page=20",
    "/runs/many/checkpoints/500",
    "/runs/sessions/checkpoints/2/sessions",
    "/runs/sessions/checkpoints/2/sessions?q=s-09999",
    "/runs/sessions/checkpoints/2/session?server=counter&key=s-05000",
    "/runs/many/measure",
)
REPORT = "unbroken report many"


def main() -> None:
    """Make the runs, and print a line for each page."""
    from tests.browser.runs import make_many, make_sessions

    with tempfile.TemporaryDirectory() as folder:
        make_many(Path(folder) / "many", CHECKPOINTS)
        make_sessions(Path(folder) / "sessions", SESSIONS)
        print(f"{'page':<64} {'first':>8} {'processor':>10} {'again':>8} {'bytes':>9}")
        for page in (*PAGES, REPORT):
            command = [sys.executable, "-m", "benchmarks.pages", folder, page]
            print(subprocess.run(command, capture_output=True, text=True, check=True).stdout, end="")


def tell(page: str, first: float, spent: float, again: float, nbytes: int) -> None:
    """Print a line."""
    print(f"{page:<64} {first * 1e3:>8.0f} {spent * 1e3:>10.0f} {again * 1e3:>8.0f} {nbytes:>9,}")


def report(root: str) -> None:
    """Print how long the page of a report takes, in milliseconds."""
    from unbroken.inspection.target import run_of
    from unbroken.ui.report.page import report as page

    taken: list[tuple[float, float]] = []
    text = ""
    for _ in range(2):
        wall, processor = time.perf_counter(), time.process_time()
        text = page(run_of(f"{root}/many"), now=time.time())
        taken.append((time.perf_counter() - wall, time.process_time() - processor))
    (first, spent), (again, _) = taken
    tell(REPORT, first, spent, again, len(text.encode()))


def ask(root: str, page: str) -> None:
    """Print how long one page takes, in milliseconds."""
    from tests.ui.serving import Pages
    from unbroken.ui.app.access import Access
    from unbroken.ui.app.site import Site

    site = Site(root, Access("127.0.0.1", 8484, owner=lambda peer, port: os.geteuid()))
    pages = Pages(site)
    pages.get("/nothing")  # what is imported at the first request
    wall, processor = time.perf_counter(), time.process_time()
    answer = pages.post(page) if page.endswith("/measure") else pages.get(page)
    for job in site.jobs.of(str(Path(root) / "many")):
        job.wait(600)
    first, spent = time.perf_counter() - wall, time.process_time() - processor
    assert answer.status_code in (200, 303), answer.text
    wall = time.perf_counter()
    pages.get(page)
    again = time.perf_counter() - wall
    tell(page, first, spent, again, len(answer.content))
    site.close()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        root, page = sys.argv[1:]
        if page == REPORT:
            report(root)
        else:
            ask(root, page)
    else:
        main()
