"""Puts rows that were measured later into the results of an earlier run. Pure.

Not promised: that the two can be compared with each other. The page says when, and with what, each was measured.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import msgspec

from benchmarks.records import Later, Results, Row


def merge(earlier: bytes, fresh: Results, *, parts: Sequence[str]) -> Results:
    """Return the earlier results, a JSON document, with the fresh rows in the place of those of the same name."""
    document = msgspec.json.decode(earlier)
    # A part that came later has sizes of its own.
    document["sizes"] = {**msgspec.to_builtins(fresh.sizes), **document["sizes"]}
    before = msgspec.convert(document, Results)
    now = {_name(row) for row in fresh.rows}
    later = Later(
        parts=list(parts),
        command=fresh.command,
        date=fresh.date,
        commit=fresh.commit,
        seconds=fresh.seconds,
        load_before=fresh.load_before,
        load_after=fresh.load_after,
    )
    return msgspec.structs.replace(
        before,
        rows=[*(row for row in before.rows if _name(row) not in now), *fresh.rows],
        later=[*(one for one in before.later if not set(one.parts) <= set(parts)), later],
    )


def _name(row: Row) -> Hashable:
    return type(row), getattr(row, "workload", ""), getattr(row, "contender", "")
