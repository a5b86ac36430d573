"""Whether the parts of a checkpoint speak of the same moment.

Commit record, metadata, directory and state each say the step, or more of it. They are written together and each has its
digest; so a difference means that somebody has put together what does not belong together, or a mistake of ours. Either
way it is no state that the training ever had.

Not promised: that a count is right which all of them have wrong.
"""

from __future__ import annotations

from unbroken.engine.source import CountsAlong, Source
from unbroken.errors import CorruptObject
from unbroken.format import layout
from unbroken.format.meta import Meta
from unbroken.format.records import Commit
from unbroken.state.snapshot import Snapshot


def check_records(commit: Commit, meta: Meta) -> None:
    """Compare what a commit and its metadata say.

    Raises:
        CorruptObject: they differ.
    """
    said = {
        "step": (commit.step, meta.step),
        "segment": (commit.segment, meta.segment),
        "position": (commit.position, meta.position),
        "good": (commit.good, meta.good),
        "birth": (commit.birth, meta.birth),
    }
    differ = [f"{name} {a!r} and {b!r}" for name, (a, b) in said.items() if a != b]
    if differ:
        raise CorruptObject(
            f"its record and its metadata do not speak of the same checkpoint: {', '.join(differ)}",
            key=f"{commit.directory}/{layout.META}",
        )
    if int(commit.directory.removeprefix(f"{layout.STEPS}/step_").partition("-")[0]) != commit.step:
        raise CorruptObject(
            f"its record says step {commit.step}, and that it lies in {commit.directory}",
            key=commit.directory,
        )


def check_state(source: Source, saved: Snapshot, commit: Commit, meta: Meta) -> None:
    """Compare what a state has counted by itself with what stands beside it.

    Raises:
        CorruptObject: they differ, or a count is below zero.
    """
    if not isinstance(source, CountsAlong):
        return
    said: dict[str, int] = {"step": commit.step}
    if (
        commit.position != "start"
    ):  # where a training begins its own count does, whatever the state has counted before
        said["episodes"] = meta.episodes
    for name, count in source.counts(saved).items():
        if count < 0 or said.get(name, count) != count:
            raise CorruptObject(
                f"its state has counted {count} as {name}, and its record says {said.get(name, count)}",
                key=commit.directory,
            )
