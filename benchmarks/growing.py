"""Weighs the store of a run that grew: many saves, then `unbroken prune`, beside what is still needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks import page_cache
from benchmarks.ours import JOB, Unbroken, live_bytes
from benchmarks.records import Sizes, StoreRow
from benchmarks.workloads import Atari

KEPT = 5
USAGE = 2
"""Exit status of a command that does not know what it was asked for."""


def measure(frames: Path, folder: Path, sizes: Sizes) -> StoreRow:
    """Fill a frame buffer from empty, saving all the way, and weigh what lies on the disk then."""
    home = folder / "home"
    home.mkdir(parents=True)
    new_rows = max(1, sizes.frame_rows // sizes.store_saves)
    workload = Atari(frames, sizes.frame_rows, new_rows)
    ours = Unbroken(workload, home, keep_last=KEPT)
    try:
        ours.start()
        for _ in range(sizes.store_saves):
            workload.train()
            ours.save()
            ours.finish()
            ours.tidy()
        expected = workload.digests()
        ours.leave()
        size = page_cache.size(home)
        pruned = page_cache.size(home) if _prune(home / JOB) else None
        live = live_bytes(home)
        workload.reset()
        ours.load()
        verified = workload.digests() == expected
    finally:
        ours.close()
    return StoreRow(saves=sizes.store_saves, size=size, pruned=pruned, live=live, verified=verified)


def _prune(run: Path) -> bool:
    """Prune as a person does; return False if this version has no such command."""
    done = subprocess.run(
        [sys.executable, "-m", "unbroken", "prune", str(run)], capture_output=True, text=True, check=False
    )
    if done.returncode == USAGE:
        return False
    if done.returncode:
        raise OSError(f"unbroken prune ended with {done.returncode}: {done.stderr.strip()}")
    return True
