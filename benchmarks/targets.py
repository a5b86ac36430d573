"""What was to be reached, and whether it was. Pure: from the rows of one run to words.

Ratios to a limit are taken save by save, since limit and save are measured in pairs, and the median counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.ours import Unbroken
from benchmarks.records import (
    Calls,
    GymRow,
    GymSave,
    GymServerRow,
    Limits,
    Load,
    RestoreRow,
    Results,
    Row,
    Save,
    SaveRow,
    Sizes,
    StoreRow,
    TrainingRow,
)
from benchmarks.spread import Spread
from benchmarks.workloads import ATARI, GROWN, MODEL

R = TypeVar("R", TrainingRow, StoreRow, GymRow)
OURS = Unbroken.name
MEBI = 1 << 20
LEVEL = 1.1
"""Two that differ by less than this are level: the spread of one row is of that size."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the table of targets; `reached` is None for what was not measured."""

    what: str
    target: str
    measured: str = "not measured"
    reached: bool | None = None


def judge(results: Results) -> list[Verdict]:
    """Return every target with what was measured."""
    rows = Rows(results.rows)
    return [
        *_incremental(rows.ours_saved(ATARI)),
        *_growth(rows.ours_saved(ATARI), rows.ours_saved(GROWN)),
        *_model(rows.ours_saved(MODEL), rows.peers_saved(MODEL)),
        *_restore("(a)", rows, ATARI),
        *_restore("(c)", rows, MODEL),
        _training(rows.one(TrainingRow)),
        _store(rows.one(StoreRow)),
        *_gym(rows.one(GymRow), results.sizes),
    ]


class Rows:
    """The rows of one run, found by what they are. Rows that failed are nowhere."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = [row for row in rows if row.verified and not row.failure]

    def ours_saved(self, workload: str) -> SaveRow | None:
        """Return our saves of a workload."""
        return next((row for row in self._saved(workload) if row.contender == OURS), None)

    def peers_saved(self, workload: str) -> list[SaveRow]:
        """Return everybody else's."""
        return [row for row in self._saved(workload) if row.contender != OURS]

    def restored(self, workload: str) -> list[RestoreRow]:
        """Return all loads of a workload."""
        return [row for row in self._rows if isinstance(row, RestoreRow) and row.workload == workload]

    def one(self, kind: type[R]) -> R | None:
        """Return the only row of its kind."""
        return next((row for row in self._rows if isinstance(row, kind)), None)

    def _saved(self, workload: str) -> list[SaveRow]:
        return [row for row in self._rows if isinstance(row, SaveRow) and row.workload == workload]


def ratio(
    saves: Sequence[Save], cost: Callable[[Save], float], limit: Callable[[Limits], float | None]
) -> float | None:
    """Return the median of cost by limit, save by save; None where no limit was measured."""
    found: list[float] = []
    for save in saves:
        bound = None if save.limits is None else limit(save.limits)
        if bound:
            found.append(cost(save) / bound)
    return statistics.median(found) if found else None


def at_most(what: str, limit: float, measured: float | None, unit: str = "×", more: str = "") -> Verdict:
    """Return the verdict on something that must not exceed a limit."""
    if measured is None:
        return Verdict(what, f"≤ {limit:g} {unit}")
    return Verdict(what, f"≤ {limit:g} {unit}", f"{measured:.2f} {unit}{more}", measured <= limit)


def blocked(save: Save) -> float:
    return save.blocked


def durable(save: Save) -> float:
    return save.durable


def _incremental(ours: SaveRow | None) -> list[Verdict]:
    saves, idle = ([], []) if ours is None else (ours.back_to_back, ours.after_idle)
    parts = "" if ours is None else _parts(ours)
    written = None if ours is None else _median(saves, lambda save: save.written) / ours.compressed
    copy = "(a) blocked, by the copy of what changed"
    return [
        at_most(copy, 2, ratio(saves, blocked, lambda limits: limits.copy), more=parts),
        at_most(f"{copy}, after idleness", 2, ratio(idle, blocked, lambda limits: limits.copy)),
        at_most(
            "(a) until durable, by its durable write",
            1.5,
            ratio(saves, durable, lambda limits: limits.buffered),
        ),
        at_most("(a) bytes written, by the compressed size of what changed", 1.05, written),
        _memory(ours),
    ]


def _memory(ours: SaveRow | None) -> Verdict:
    what, target = "(a) memory on top of training", "≤ what changed + 64 MiB"
    if ours is None:
        return Verdict(what, target)
    room = ours.changed + 64 * MEBI
    on_top = max(save.on_top for save in ours.back_to_back + ours.after_idle)
    return Verdict(what, target, f"{on_top / MEBI:.0f} of {room / MEBI:.0f} MiB", on_top <= room)


def _parts(ours: SaveRow) -> str:
    return "".join(f"; {name} {1000 * seconds:.1f} ms" for name, seconds in ours.parts.items())


def _growth(ours: SaveRow | None, grown: SaveRow | None) -> list[Verdict]:
    names = ((blocked, "growth of the buffer: blocked time"), (durable, "growth of the buffer: durable time"))
    if ours is None or grown is None:
        return [Verdict(what, "≤ 1.15 ×") for _, what in names]
    return [
        at_most(what, 1.15, _median(grown.back_to_back, cost) / _median(ours.back_to_back, cost))
        for cost, what in names
    ]


def _model(ours: SaveRow | None, peers: list[SaveRow]) -> list[Verdict]:
    verdicts = [at_most("(d) first full save of (c) until durable, by O_DIRECT", 1.3, _first(ours))]
    for when, saves_of in (("back to back", _back_to_back), ("after idleness", _after_idle)):
        saves = [] if ours is None else saves_of(ours)
        verdicts += [
            at_most(
                f"(c) full save until durable, by O_DIRECT, {when}",
                1.3,
                ratio(saves, durable, lambda limits: limits.direct),
            ),
            at_most(
                f"(c) blocked, by the copy with two threads, {when}",
                1.3,
                ratio(saves, blocked, lambda limits: limits.copy_two),
            ),
        ]
        best = min((_median(found, durable) for row in peers if (found := saves_of(row))), default=None)
        limit = LEVEL if when == "back to back" else 1.0
        mine = _median(saves, durable) / best if saves and best else None
        verdicts.append(at_most(f"(c) full save until durable, by the best peer, {when}", limit, mine))
    return verdicts


def _first(ours: SaveRow | None) -> float | None:
    """Return the first save by the median limit of those after it: its own was not measured, so that the
    process is as new as it would be."""
    if ours is None or ours.first is None:
        return None
    limits = [save.limits.direct for save in ours.back_to_back if save.limits and save.limits.direct]
    return ours.first.durable / statistics.median(limits) if limits else None


def _restore(name: str, rows: Rows, workload: str) -> list[Verdict]:
    found = rows.restored(workload)
    ours = next((row for row in found if row.contender == OURS), None)
    best = min((_seconds(row.warm) for row in found if row.contender != OURS), default=None)
    cold = (
        None
        if ours is None
        else statistics.median(load.seconds / load.fresh for load in ours.cold if load.fresh)
    )
    warm = None if ours is None or best is None else _seconds(ours.warm) / best
    return [
        at_most(f"{name} restore, cold, by the cold read into fresh memory", 1.25, cold),
        at_most(f"{name} restore, warm, by the best peer", 0.5, warm),
    ]


def _training(row: TrainingRow | None) -> Verdict:
    what = "DQN slowed down by saving"
    if row is None:
        return Verdict(what, "≤ 2 %")
    plain, saving = statistics.median(row.plain), statistics.median(row.saving)
    saves = f"; {sum(row.saves)} saves in {len(row.saves)} trainings"
    return at_most(what, 2, 100 * (saving / plain - 1), "%", saves)


def _store(row: StoreRow | None) -> Verdict:
    what = "store of a growing run, by its live data"
    if row is None or not row.live:
        return Verdict(what, "≤ 1.1 ×")
    size = row.size if row.pruned is None else row.pruned
    how = "; this version has no command to prune" if row.pruned is None else ""
    return at_most(what, 1.1, size / row.live, more=how)


def _gym(row: GymRow | None, sizes: Sizes) -> list[Verdict]:
    found = {} if row is None else {server.name: server for server in row.servers}
    calls = {} if row is None else {(calls.connections, calls.rest): calls for calls in row.calls}
    verdicts: list[Verdict] = []
    for name, sessions, changed in (
        ("counter", sizes.counters, sizes.changed_counters),
        ("workplace", sizes.workplaces, sizes.changed_workplaces),
    ):
        for cost, what in ((paused, "pause"), (gym_durable, "until durable"), (gym_written, "bytes")):
            named = f"{changed:,} of {sessions:,} sessions ({name}) changed: {what}, by that of a full save"
            verdicts.append(_share(named, found.get(name), cost))
    cases = (((1, 0.0), "1 connection"), ((16, 0.1), "16 connections"), ((16, 0.0), "16 without a rest"))
    return verdicts + [_call(calls.get(case), what) for case, what in cases]


def _share(what: str, server: GymServerRow | None, cost: Callable[[GymSave], float]) -> Verdict:
    if server is None:
        return Verdict(what, "≤ 5 %")
    shares = Spread.of(
        100 * statistics.median(map(cost, series.later)) / cost(series.full) for series in server.series
    )
    return _spread_at_most(what, 5, shares, "%")


def _call(calls: Calls | None, which: str) -> Verdict:
    what = f"a call with the log, over plain, {which}"
    return _spread_at_most(what, 3, None if calls is None else added(calls), "ms")


def added(calls: Calls) -> Spread | None:
    """Return the milliseconds that the log adds to a call, block by block."""
    return Spread.of(1000 * (b - a) for a, b in zip(calls.plain, calls.logged, strict=True))


def _spread_at_most(what: str, limit: float, found: Spread | None, unit: str) -> Verdict:
    if found is None:
        return Verdict(what, f"≤ {limit:g} {unit}")
    return at_most(what, limit, found.median, unit, f" ({found.least:.2f} to {found.most:.2f})")


def paused(save: GymSave) -> float:
    return save.paused


def gym_durable(save: GymSave) -> float:
    return save.durable


def gym_written(save: GymSave) -> float:
    return save.written


def _back_to_back(row: SaveRow) -> list[Save]:
    return row.back_to_back


def _after_idle(row: SaveRow) -> list[Save]:
    return row.after_idle


def _median(saves: Sequence[Save], cost: Callable[[Save], float]) -> float:
    return statistics.median(map(cost, saves))


def _seconds(loads: Sequence[Load]) -> float:
    return statistics.median(load.seconds for load in loads)
