"""docs/torture.md: the table, and what it is a table of."""

from __future__ import annotations

from collections.abc import Sequence

from torture.bench import Line

_TOP = """# Torture

`make torture` does {faults} distinct faults to a run, one after the other, and has the real code recover from each. It
writes this page. A choice of them is part of `make test`.

| | |
|---|---|
| distinct faults | {faults} |
| commits lost | {lost} |
| wrong states | {wrong} |
| hangs | {hangs} |
| the longest recovery | {most} calls of the system, {bound} are permitted |
| code | `{commit}`, seed {seed} |

Two faults are distinct if they leave another disk behind or other promises to keep (power failures), or if they
happen at another call, with another error, or to another byte (all others).

## What is asked after each

1. What was promised is there: each commit that `save` has acknowledged and no retention was told to delete, each line of
   the history.
2. What is there is whole: each commit that counts loads byte for byte as the state of its step, whether it was acknowledged
   or not. After damage to a file, a commit that needs it says so and never loads as something else.
3. The next process takes the run over; nothing that counts changes; it saves and retains. What had failed once does not
   fail the next save of the same process; what was read wrongly, and so taken for damage, not the one after it.
4. Nothing is left over: no object without a commit, no temporary file, no lease, no open descriptor, no number used twice.
5. All of it takes a bounded number of calls.

## By kind

| kind | faults | recovered | lost | wrong | hangs | most calls |
|---|--:|--:|--:|--:|--:|--:|
{rows}
"""

_REST = """
{left_out}
## The kinds

- **Power fails**: a run of two starts with eight saves, retention and compaction is recorded, call by call, with its
  barriers. After each call, disks are made as POSIX permits them: what is not synced may be there in part, by its length
  only, or not at all, and names may arrive in any order. *torn* cuts writes, *reordered* leaves out or lets through.
- **Errors that are returned** at each call that changes something: once, for ever, and once although the call has happened. At
  the birth of a run and at its second start.
- **network**: what NFS does (a call sent twice, a stale handle, a listing that is out of date, `.nfs` files, a quota that is told
  at `close`), by an injected layer.
- **Places**: a disk in memory that is too small, one that is made read-only by the kernel, a directory that is moved away, and one
  that is closed to a user who is not root.
- **clock jumps**: of a second up to ten years, forth and back, at each reading.
- **damage**: bits, lengths and contents of each file at rest.
- **bucket**: each request to an object store fails, is doubled, comes late, is cut short, or is the last of its process.

That the bench finds something is tested with stores that are broken on purpose (`torture/broken.py`): a name before the sync of its
file, no sync of files, of directories, of the names of new directories, a commit before its pack.

## Not promised

- No disk was switched off, and no real mount of NFS was there: disks and networks are simulated after what POSIX and NFS permit.
- One fault at a time, then a healthy store. Two in a row are the business of the state machines in `tests/stateful`.
- A directory that was moved away and replaced by another, empty one while nobody was running is a new run.
- Of a commit whose record somebody has deleted by hand, the number can be given again.
- A listing that shows neither the newest commits nor anything near the low-water mark can hide them.
"""


def page(lines: Sequence[Line], *, commit: str, seed: int, bound: int, left_out: Sequence[str]) -> str:
    """Return the page."""
    rows = "\n".join(
        f"| {one.kind} | {one.faults} | {one.recovered} | {one.lost} | {one.wrong} | {one.hangs} | {one.most_calls} |"
        for one in lines
    )
    head = _TOP.format(
        faults=f"{sum(one.faults for one in lines):,}",
        lost=sum(one.lost for one in lines),
        wrong=sum(one.wrong for one in lines),
        hangs=sum(one.hangs for one in lines),
        most=f"{max(one.most_calls for one in lines):,}",
        bound=f"{bound:,}",
        commit=commit,
        seed=seed,
        rows=rows,
    )
    missing = "".join(f"- {one}\n" for one in left_out)
    return head + _REST.format(left_out=f"Left out where this was run:\n\n{missing}\n" if missing else "")
