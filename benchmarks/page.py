"""The page: one run of the benchmarks in Markdown. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from benchmarks.records import (
    GymRow,
    GymServerRow,
    Later,
    Limits,
    Load,
    RanksRow,
    RestoreRow,
    Results,
    Save,
    SaveRow,
    StoreRow,
    TrainingRow,
    WorldRow,
)
from benchmarks.spread import Spread
from benchmarks.targets import OURS, added, blocked, durable, judge
from benchmarks.workloads import ATARI, GROWN, MODEL, VECTORS

QUIET = 0.5
"""Load average per core above which timings of a run are called preliminary."""
_OTHERS_THEN = " **Preliminary**: others used the machine then, so these timings mean little."
REACHED = {True: "yes", False: "**no**", None: "not measured"}


def render(results: Results) -> str:
    """Return the text of docs/benchmarks.md."""
    parts = [
        "# Benchmarks",
        _warning(results),
        _method(results),
        "## Targets",
        _table(
            ("what", "target", "measured", "reached"),
            [(v.what, v.target, v.measured, REACHED[v.reached]) for v in judge(results)],
        ),
    ]
    titles = {
        ATARI: "(a) Nature-CNN, Adam and a buffer of Atari frames",
        GROWN: f"(a) The same, the buffer {results.sizes.growth} × as large, as many new rows",
        VECTORS: "(b) Actor, critics and a buffer of float32 vectors",
        MODEL: "(c) A model with Adam, no buffer",
    }
    for workload, title in titles.items():
        saved = [row for row in results.rows if isinstance(row, SaveRow) and row.workload == workload]
        if saved:
            parts += [f"## {title}: saves", _saves(saved, results)]
    for workload, title in titles.items():
        loaded = [row for row in results.rows if isinstance(row, RestoreRow) and row.workload == workload]
        if loaded:
            parts += [f"## {title}: restore", _loads(loaded)]
    for row in results.rows:
        if isinstance(row, TrainingRow):
            parts += ["## DQN on Pong, with and without saves", _training(row, results)]
        if isinstance(row, StoreRow):
            parts += ["## The store of a growing run", _store(row)]
        if isinstance(row, RanksRow):
            parts += ["## Several ranks on one machine", _ranks(row)]
        if isinstance(row, GymRow):
            parts += ["## Sessions of NeMo Gym", _gym(row)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _warning(results: Results) -> str:
    if results.quick:
        return "> **No result**: sizes of a quick run, which only shows that everything works."
    if _is_loud(results, results.machine.cores):
        return (
            f"> **Preliminary**: others used the machine (load average {results.load_before:.1f} before,"
            f" {results.load_after:.1f} after), so these timings mean little."
        )
    return ""


def _is_loud(run: Results | Later, cores: int) -> bool:
    """Whether others used the machine."""
    # The benchmark itself keeps every core busy: torch computes on all of them.
    return max(run.load_before, run.load_after - cores) > QUIET * cores


def _method(results: Results) -> str:
    machine, sizes = results.machine, results.sizes
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    at = f" at commit {results.commit}" if results.commit else ""
    later = "".join(
        f"\n* Measured later: {', '.join(one.parts)}, by `{one.command}` at commit {one.commit or 'unknown'}, {one.date},"
        f" {one.seconds:.0f} s; load average {one.load_before:.2f} before and {one.load_after:.2f} after."
        + (_OTHERS_THEN if _is_loud(one, results.machine.cores) else "")
        for one in results.later
    )
    return f"""`{results.command}`{at}, {results.date}, {results.seconds:.0f} s. {machine.cores} cores of {machine.cpu},
{machine.memory / 2**30:.0f} GiB, Linux {machine.kernel}, {machine.file_system}; load average {results.load_before:.2f} before and
{results.load_after:.2f} after. {versions}. All figures, also those not shown here, are in the file beside this page.

* Seconds are medians, with least and most in brackets. *Blocked*: until training may go on and overwrite its
  memory. *Durable*: until every file and directory is fsync'd. *First*: the
  first full save (d) of the process, into an empty directory.
* Between two saves every weight changes and 1 % of the rows of the buffer are new ({sizes.frame_rows // 100:,} of
  {sizes.frame_rows:,} frames; as many in the grown buffer), added through the buffer's own `add`. Frames are real ones of eight Atari games.
* Each row is a process of its own, with glibc's mmap threshold fixed: memory that an earlier row has touched
  would make a later one too fast. Saves are measured back to back and after {sizes.idle_seconds:g} s of idleness, since fresh memory
  can cost many times more then.
* The limits are measured in turn with Unbroken's saves: limit, save, limit, save. Ratios are taken pair by pair.
* *Contents*: training goes on while the last save is written; then it is loaded into a fresh twin of zeros, and
  everything is compared with the state at the moment of the save. Every load of a restore is compared, too.
* *On top*: the highest resident memory during a save, above that of training before anything was saved.
* *Cold*: dropped from the page cache, checked by mincore. What lies in a host's cache below is out of reach.{later}"""


def _saves(rows: list[SaveRow], results: Results) -> str:
    ours = next((row for row in rows if row.contender == OURS and row.back_to_back), None)
    parts: list[str] = []
    if ours is not None:
        compressed = f", {_mb(ours.compressed)} compressed by zstd" if ours.compressed else ""
        parts.append(f"{_mb(ours.state)} of state, of which {_mb(ours.changed)} change{compressed}.")
    head = ("", "blocked s", "durable s", "first: blocked, durable s", "written", "on top", "contents")
    idle = results.sizes.idle_seconds
    for when, saves_of in (("back to back", _back_to_back), (f"after {idle:g} s idle", _after_idle)):
        if saves_of is _after_idle and not any(map(saves_of, rows)):
            continue  # not measured for this workload; what failed stands in the first table
        body = _limits(ours, saves_of) if ours is not None else []
        body += [_save(row, saves_of(row)) for row in rows]
        parts.append(f"**{when.capitalize()}**\n\n{_table(head, body)}")
    if ours is not None and ours.parts:
        shares = ", ".join(f"{name} {seconds:.4f} s" for name, seconds in ours.parts.items())
        parts.append(f"What blocks in {OURS}, measured apart: {shares}; the rest is the copy.")
    return "\n\n".join(parts)


def _limits(ours: SaveRow, saves_of: Callable[[SaveRow], list[Save]]) -> list[tuple[str, ...]]:
    found = [save.limits for save in saves_of(ours) if save.limits is not None]

    def spread(limit: Callable[[Limits], float | None]) -> str:
        return _seconds(value for limits in found if (value := limit(limits)) is not None)

    rest = ("", _mb(ours.changed), "", "")
    return [
        ("*limit: copy of what changed*", spread(lambda limits: limits.copy), "", "", "", "", ""),
        ("*limit: the same, two threads*", spread(lambda limits: limits.copy_two), "", "", "", "", ""),
        ("*limit: write + fsync of it*", "", spread(lambda limits: limits.buffered), *rest),
        ("*limit: the same by O_DIRECT*", "", spread(lambda limits: limits.direct), *rest),
    ]


def _save(row: SaveRow, saves: list[Save]) -> tuple[str, ...]:
    if row.failure:
        return (row.contender, "", "", "", "", "", f"**failed**: {row.failure}")
    first = "" if row.first is None else f"{row.first.blocked:.3f}, {row.first.durable:.3f}"
    written = Spread.of(save.written for save in saves)
    return (
        row.contender,
        _seconds(map(blocked, saves)),
        _seconds(map(durable, saves)),
        first,
        "" if written is None else _mb(written.median),
        _mb(max((save.on_top for save in saves), default=0)),
        _contents(verified=row.verified),
    )


def _loads(rows: list[RestoreRow]) -> str:
    ours = next((row for row in rows if row.contender == OURS and row.warm), None)
    body: list[tuple[str, ...]] = []
    if ours is not None:
        for what, read in (("fresh", _fresh), ("touched", _touched)):
            figures = (_reads(ours.warm, read), _reads(ours.cold, read), _mb(ours.state), "", "")
            body.append((f"*limit: read into {what} memory*", *figures))
    for row in rows:
        if row.failure:
            body.append((row.contender, "", "", "", "", f"**failed**: {row.failure}"))
            continue
        warm, cold = (_seconds(load.seconds for load in loads) for loads in (row.warm, row.cold))
        body.append(
            (
                row.contender,
                warm,
                cold,
                _mb(row.stored),
                _mb(row.resident),
                _contents(verified=row.verified),
            )
        )
    return _table(("", "warm s", "cold s", "on disk", "still cached when cold", "contents"), body)


def _training(row: TrainingRow, results: Results) -> str:
    if row.failure:
        return f"**Failed**: {row.failure}"
    same = "all ended with the same weights" if row.verified else "they ended with **different weights**"
    return (
        f"{row.steps:,} steps with a buffer of {results.sizes.frame_rows:,} rows, a save every"
        f" {results.sizes.training_interval:g} s; {same}.\n\n"
        + _table(
            ("", "s", "saves", "blocked s a save"),
            [
                ("without saves", _seconds(row.plain), "", ""),
                (OURS, _seconds(row.saving), ", ".join(map(str, row.saves)), _seconds(row.blocked)),
            ],
        )
    )


def _store(row: StoreRow) -> str:
    if row.failure:
        return f"**Failed**: {row.failure}"
    pruned = "this version has no command to prune" if row.pruned is None else _mb(row.pruned)
    contents = _contents(verified=row.verified)
    return (
        f"After {row.saves} saves: {_mb(row.size)}. Pruned: {pruned}."
        f" Live data: {_mb(row.live)}. Contents: {contents}."
    )


def _ranks(row: RanksRow) -> str:
    if row.failure:
        return f"**Failed**: {row.failure}"
    body = [
        (
            str(world.size),
            _seconds(save.blocked for ranked in world.ranks for save in ranked.saves),
            _seconds(save.durable for save in world.ranks[0].saves),
            " to ".join(_mb(size) for size in _least_and_most(world)),
            _seconds(save.own for save in world.ranks[0].saves),
            _seconds(save.tidying for save in world.ranks[0].saves),
        )
        for world in row.worlds
    ]
    head = (
        "ranks",
        "blocked s",
        "durable s",
        "written by one rank in one save",
        "coordinator's own s",
        "tidying up s",
    )
    return (
        f"Each rank saves {_mb(row.nbytes)} that change wholly and do not shrink, all to one disk. *Coordinator's own*:"
        " what rank 0 spends on a save beside its own part and waiting for the others. *Tidying up*: what it does when"
        " the checkpoint is committed and no rank waits: it deletes as many bytes as were written."
        f" Contents: {_contents(verified=row.verified)}.\n\n" + _table(head, body)
    )


def _least_and_most(world: WorldRow) -> tuple[int, int]:
    written = [save.written for ranked in world.ranks for save in ranked.saves]
    return min(written), max(written)


def _gym(row: GymRow) -> str:
    if row.failure:
        return f"**Failed**: {row.failure}"
    versions = ", ".join(f"{name} {version}" for name, version in row.versions.items())
    saves: list[tuple[str, ...]] = []
    for server in row.servers:
        full = [series.full for series in server.series]
        few = [save for series in server.series for save in series.later]
        for what, found in (
            (f"{server.name}: all of {server.sessions:,} changed", full),
            (f"{server.name}: {server.changed:,} changed", few),
        ):
            written = Spread.of(save.written for save in found)
            saves.append(
                (
                    what,
                    _seconds(save.paused for save in found),
                    _seconds(save.blocked for save in found),
                    _seconds(save.durable for save in found),
                    "" if written is None else f"{written.median / 1e6:,.3f} MB",
                )
            )
    calls = [
        (
            f"{one.connections}, rest {1000 * one.rest:g} ms" if one.rest else f"{one.connections}",
            _milliseconds(Spread.of(1000 * seconds for seconds in one.plain)),
            _milliseconds(Spread.of(1000 * seconds for seconds in one.logged)),
            _milliseconds(added(one)),
        )
        for one in row.calls
    ]
    return "\n\n".join(
        (
            f"In an environment of its own: {versions}. Real servers, each a process of its own, called over HTTP.",
            (
                "Saves of a run that tracks a `Gym`. *Paused*: from telling the server to stop until it says that it goes on;"
                " that is a part of *blocked*."
            ),
            _table(("", "paused s", "blocked s", "durable s", "written"), saves),
            (
                "Restores, after a SIGKILL. *From its log*: the server alone, once it runs. *From the checkpoint*: the log is"
                " lost, and a run that is started again puts the sessions back, until its loop goes on."
                " *Sessions*: compared by the digests of their live state."
            ),
            _table(
                ("", "from its log s", "from the checkpoint s", "sessions"),
                [_gym_restored(server) for server in row.servers],
            ),
            (
                "Calls of the counter (`/increment_counter`) without a log and with it, in turn. Each client asks again as soon"
                " as it is answered, or after a rest, as agents do that ask their model in between. Sixteen without a rest"
                " leave the server none either: a call waits for 15 others, so what the log adds to one is seen 16 times."
                " Medians of blocks, with least and most in brackets."
            ),
            _table(("connections", "plain ms", "with the log ms", "added ms"), calls),
        )
    )


def _gym_restored(server: GymServerRow) -> tuple[str, ...]:
    return (
        f"{server.name}: {server.sessions:,}",
        f"{server.from_log:.2f}",
        f"{server.from_checkpoint:.2f}",
        _contents(verified=server.verified),
    )


def _milliseconds(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.median:.2f} ({spread.least:.2f} to {spread.most:.2f})"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(' '.join(cell.replace('|', '/').split()) for cell in line)} |" for line in lines
    )


def _contents(*, verified: bool) -> str:
    return "equal" if verified else "**not equal**"


def _seconds(values: Iterable[float]) -> str:
    spread = Spread.of(values)
    return "" if spread is None else spread.text()


def _reads(loads: list[Load], read: Callable[[Load], float | None]) -> str:
    return _seconds(value for load in loads if (value := read(load)) is not None)


def _fresh(load: Load) -> float | None:
    return load.fresh


def _touched(load: Load) -> float | None:
    return load.touched


def _back_to_back(row: SaveRow) -> list[Save]:
    return row.back_to_back


def _after_idle(row: SaveRow) -> list[Save]:
    return row.after_idle


def _mb(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"
