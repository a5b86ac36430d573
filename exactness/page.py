"""The page: what was proved and what was not, as Markdown. Pure.

Not promised: which row is of which run, machine and seed. The head has those of the last run, and every commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from exactness.records import Results, Row

INTRODUCTION = """\
Each row is one training, proved by killing it. Three runs, each in processes of its own:

* **U**, undisturbed. It saves at its start and its end only.
* **R**, ended by SIGKILL in the middle of the step given under *killed*, which was drawn before, and started again in
  another interpreter with another hash seed.
* **C**, resumed like R, but the part under *left cold* stays as the new process has built it.

A row is **exact** if R ends as U does, bit for bit, and C does not: every weight, every number of the optimizers, what
each generator draws next (Python's, NumPy's, PyTorch's, the action space's), what the environment does next, and
every leaf of the two final checkpoints (buffers, counters, statistics, wrappers, callbacks, generators in worker
processes). That C differs shows that the comparison would have noticed a part that does not come back.

A row is **approximate** or **impossible** if its checkpoint says so, for the reason that is known, and R, which went on
from a checkpoint, ends otherwise than U. One is **refused** if its checkpoint says that it is not exact, and the start
that was to go on ends with an error of ours before it trains. Neither has a C.

*Steps* are steps of the vector of environments; *from* is the step, as `learn` counts it, of the checkpoint from which R
went on. Networks and trainings are tiny: equality needs no learning."""

LEFT_OUT = """\
## What is not compared

* Wall-clock times: the closed list in `src/unbroken/capture/volatile.py`, nothing else.
* Generators of observation spaces, which the system's entropy seeds when the space is made, so that two undisturbed runs
  differ there. Only a CNN of Stable-Baselines3 draws from one, once, when it is built."""

IMPOSSIBLE = """\
## What no checkpoint can hold

| what | why | what happens instead |
|---|---|---|
| a moment inside `train()`, inside an evaluation, inside the candidates of ARS | the state lies in local variables of Python, \
which nobody can set | the save waits for the next clean point, or the run goes on from the one before |
| the inner state of a Box2D world | its bindings write neither contact impulses nor the order of contacts | the episode is \
replayed, and a digest of what it returned is compared |
| an environment that reads the wall clock, the network, or state that is neither in attributes nor \
reachable by a seed | it is another one after every start | it is named, with the reason, as approximate or not captured |
| equality on another processor type, with other versions or thread counts | sums are rounded in another order | the \
checkpoint holds a fingerprint, and a start that differs says so |"""


def merged(earlier: Results, fresh: Results, *, order: Sequence[str]) -> Results:
    """Return the fresh results with the earlier rows of all other cells, in `order`; what is in no order any more is gone."""
    rows = {row.key: row for row in (*earlier.rows, *fresh.rows)}
    return msgspec.structs.replace(fresh, rows=[rows[key] for key in order if key in rows])


def render(results: Results) -> str:
    """Return the text of docs/exactness.md."""
    parts = ["# Exactness", _summary(results.rows), _where(results), INTRODUCTION, tables(results.rows)]
    return "\n\n".join([*parts, IMPOSSIBLE, LEFT_OUT]) + "\n"


def tables(rows: Sequence[Row]) -> str:
    """Return the rows alone, a table for each group."""
    groups = dict.fromkeys(row.group for row in rows)
    return "\n\n".join(_group(name, [row for row in rows if row.group == name]) for name in groups)


def verdict(row: Row) -> str:
    """Return what is known of a cell, with its reason where it is not exact."""
    if not row.holds:
        return f"**does not hold**: {row.reason}"
    return "exact" if row.claim == "exact" else f"{row.claim}: {row.reason}"


def _summary(rows: Sequence[Row]) -> str:
    count = Counter(row.claim if row.holds else "failed" for row in rows)
    said = [
        f"{count[claim]} {words}"
        for claim, words in (
            ("exact", "exact"), ("approximate", "approximate, and said to be"),
            ("impossible", "out of reach, and said to be"), ("refused", "said to be not exact, and refused at the restart"),
            ("failed", "**not as claimed**"),
        )
        if count[claim]
    ]  # fmt: skip
    return f"{len(rows)} cells: {', '.join(said)}."


def _where(results: Results) -> str:
    """Return where and when, and how it is done again."""
    machine = results.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    proved = Counter((row.date.partition(" ")[0], row.commit) for row in results.rows)
    seconds = sum(row.seconds for row in results.rows)
    again = f"python -m exactness --jobs {results.jobs} --seed {results.seed}"
    lines = [
        f"Again: `make exactness`, or `{again}`.",
        (
            "That needs a checkout of the repository: what pip installs does not have it."
            " `scripts/exactness --only contrib` proves some and prints their rows."
        ),
    ]
    for (day, commit), n in sorted(proved.items()):
        lines.append(f"{n} {'cell' if n == 1 else 'cells'} on {day} at commit {commit or 'unknown'}.")
    lines += [
        f"{machine.cores} cores of {machine.cpu}, Linux {machine.kernel}; {seconds:.0f} s in all, {results.jobs} at a time.",
        f"{versions}.",
    ]
    return "\n".join(f"* {line}" for line in lines)


def _group(name: str, rows: Sequence[Row]) -> str:
    head = (
        "algorithm",
        "environment",
        "with",
        "state of the environment",
        "steps",
        "killed",
        "from",
        "left cold",
        "leaves",
        "s",
    )
    lines = [
        f"## {name[0].upper()}{name[1:]}",
        "",
        f"| {' | '.join(head)} | verdict |",
        f"|{'---|' * 4}{'---:|' * 3}---|---:|---:|---|",
    ]
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    numbers = [str(number) if number else "–" for number in (row.steps, row.killed, row.resumed)]
    told = [
        row.algorithm, row.environment, row.around or "–", row.ways or "–", *numbers, f"`{row.cold}`" if row.cold else "–",
        f"{row.leaves:,}" if row.leaves else "–", f"{row.seconds:.0f}", verdict(row),
    ]  # fmt: skip
    return [text.replace("|", "\\|").replace("\n", " ") for text in told]
