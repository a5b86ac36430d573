"""Saves of several ranks on one machine: who writes what, and what the coordinator adds.

As a module it is one rank: `python -m benchmarks.ranks FOLDER RANK SIZE BYTES SAVES`. Each rank has an array of its
own that changes wholly between two saves, so nothing is shared and nothing can be left out.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.records import Ranked, RankedSave, RanksRow, Sizes, WorldRow

WORLDS = (1, 2, 4, 8)
START_S = 300.0


def measure(folder: Path, sizes: Sizes) -> RanksRow:
    """Measure worlds of 1, 2, 4 and 8 ranks, one after the other."""
    worlds = [_world(folder / str(size), size, sizes) for size in WORLDS]
    verified = all(ranked.verified for world in worlds for ranked in world.ranks)
    return RanksRow(nbytes=sizes.rank_bytes, worlds=worlds, verified=verified)


def _world(folder: Path, size: int, sizes: Sizes) -> WorldRow:
    folder.mkdir(parents=True)
    arguments = [str(size), str(sizes.rank_bytes), str(sizes.rank_saves)]
    processes = [
        subprocess.Popen([sys.executable, "-m", "benchmarks.ranks", str(folder), str(rank), *arguments])
        for rank in range(size)
    ]
    statuses = [process.wait() for process in processes]
    if any(statuses):
        raise RuntimeError(f"of {size} ranks these ended with {statuses}")
    return WorldRow(
        size=size,
        ranks=[
            msgspec.json.decode((folder / f"{rank}.json").read_bytes(), type=Ranked) for rank in range(size)
        ],
    )


class _Clocks:
    """Seconds that a process spends in some functions, and bytes of packs that it writes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.nbytes = 0

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call`, timed under this name."""

        def timed(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

        return timed

    def first(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call`, of which only the first one of each save is timed."""
        timed = self.around(name, call)

        def once(*arguments: Any, **options: Any) -> Any:
            return (call if name in self.seconds else timed)(*arguments, **options)

        return once

    def counting(self, put_all: Callable[..., Any]) -> Callable[..., Any]:
        """Return `put_all`, which then counts the bytes of what it is given."""

        def counted(store: Any, items: Any) -> Any:
            return put_all(store, ((key, self._counted(key, data)) for key, data in items))

        return counted

    def _counted(self, key: str, data: Any) -> Any:
        if not key.endswith(".pack"):
            return data

        def pieces() -> Any:
            for piece in data:
                self.nbytes += memoryview(piece).nbytes
                yield piece

        return pieces()


def main(folder: str, rank: int, size: int, nbytes: int, saves: int) -> None:
    """Be one rank: save `saves` times, and leave a file with what each has cost."""
    from unbroken.capture.generators import GlobalGenerators
    from unbroken.capture.source import GraftSource, policy_of_loaded
    from unbroken.engine.engine import CheckpointEngine
    from unbroken.engine.settings import Settings
    from unbroken.engine.world import World
    from unbroken.repo import coordinator, part_writer, rendezvous, writer

    clocks = _Clocks()
    # What only a benchmark wants to know is measured from outside.
    for module in (writer, part_writer):
        # The first is the rank's own part; with the second the coordinator puts the manifest of all.
        module.put_all = clocks.first("put", clocks.counting(module.put_all))  # type: ignore[attr-defined]
    rendezvous.Rendezvous.gather = clocks.around("waited", rendezvous.Rendezvous.gather)  # type: ignore[method-assign]
    coordinator.Coordinator.collect = clocks.around("collect", coordinator.Coordinator.collect)  # type: ignore[method-assign]
    writes = writer.CheckpointWriter
    writes.write = clocks.around("write", writes.write)  # type: ignore[method-assign]
    writes.retain = clocks.around("retain", writes.retain)  # type: ignore[method-assign]

    draw = np.random.default_rng(rank)
    shard = draw.random(nbytes // 8)
    source = GraftSource({"shard": shard, "generators": GlobalGenerators()}, policy_of_loaded())
    world = World(rank=rank, size=size, replicated=(), sync_timeout=START_S, start_timeout=START_S)
    engine = CheckpointEngine(
        source, Settings(root=Path(folder) / "runs", every=1, keep_last=2), world=world, environment={}
    )
    engine.resume()
    found: list[RankedSave] = []
    for step in range(1, saves + 1):
        draw.random(out=shard)
        clocks.seconds.clear()
        before, started = clocks.nbytes, time.perf_counter()
        engine.save(step, reason="measured")
        blocked = time.perf_counter() - started
        engine.wait()
        found.append(
            RankedSave(
                blocked=blocked,
                durable=time.perf_counter() - started,
                written=clocks.nbytes - before,
                own=_own(clocks.seconds) if rank == 0 else 0.0,
                tidying=clocks.seconds.get("retain", 0.0),
            )
        )
    last = engine.load(saves).components["training_state"]
    same = any(last.content(i).tobytes() == shard.tobytes() for i in range(len(last.blobs)))
    engine.close()
    (Path(folder) / f"{rank}.json").write_bytes(msgspec.json.encode(Ranked(saves=found, verified=same)))


def _own(seconds: dict[str, float]) -> float:
    """Return what the coordinator spends on a save beside writing its own part and waiting for others."""
    return seconds.get("write", 0.0) - seconds.get("put", 0.0) - seconds.get("waited", 0.0)


if __name__ == "__main__":
    main(sys.argv[1], *(int(number) for number in sys.argv[2:]))
