"""`unbroken export RUN --to neutral DIR`: the part of the command that writes an export for other programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from unbroken.adapters.neutral.directory import check_place, write
from unbroken.format.neutral import Left, Neutral
from unbroken.inspection.neutral.contents import contents_of
from unbroken.inspection.target import Target
from unbroken.report.quantity import counted, size

NAME = "neutral"
"""What `--to` calls this layout."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written where."""

    checkpoint: str
    directory: str
    format: str
    networks: tuple[str, ...]
    normalizers: tuple[str, ...]
    replay: tuple[str, ...]
    acts: bool
    """Whether the way from an observation to an action is in it."""
    why_no_act: str
    left: tuple[Left, ...]
    bytes: int
    load: tuple[str, ...]


def export_neutral(target: Target, directory: Path, *, force: bool) -> tuple[Exported, list[str]]:
    """Write the export of a checkpoint; return what it holds, and what to tell of it.

    Raises:
        ConfigError: the place cannot be used, the checkpoint holds nothing to export, or a package is missing.
        CorruptObject: it is damaged.
        NotCapturable: a tensor of it has a type for which exports have no name.
    """
    check_place(directory, force=force)
    run = target.where.rstrip("/").rpartition("/")[2]
    commit, contents = target.read(lambda commit: (commit, contents_of(target.repository, commit, run)))
    document = write(contents, directory, force=force)
    total = sum(file.bytes for file in document.files.values())
    load = _load(document, directory)
    result = Exported(
        checkpoint=target.place(commit),
        directory=str(directory),
        format=NAME,
        networks=tuple(network.name for network in document.networks),
        normalizers=tuple(one.name for one in document.normalizers),
        replay=tuple(one.name for one in document.replay),
        acts=document.act is not None,
        why_no_act=document.why_no_act,
        left=tuple(document.left),
        bytes=total,
        load=load,
    )
    lines = [f"{result.checkpoint} -> {directory} ({size(total)})", *_told(document)]
    return result, [*lines, *(f"To load: {line}" for line in load)]


def _told(document: Neutral) -> list[str]:
    """Return a line for each thing that is carried over, and for each that is not."""
    lines = [
        f"  carried  {network.name}: {counted(len(network.tensors), 'tensor')}"
        for network in document.networks
    ]
    if document.act is not None:
        lines.append(
            f"  carried  how {document.act.network} acts: {counted(len(document.act.steps), 'step')}"
        )
    elif document.networks:
        lines.append(f"  left     how it acts: {document.why_no_act}")
    lines += [
        f"  carried  statistics {one.name}: of {float(one.count):.0f} values" for one in document.normalizers
    ]
    for held in document.replay:
        order = (
            "oldest first" if held.order == "oldest-first" else "as stored: which is the oldest is not known"
        )
        lines.append(f"  carried  {held.name}: {counted(held.rows, 'row')}, {order}")
    return [*lines, *(f"  left     {left.what}: {left.why}" for left in document.left)]


def _load(document: Neutral, directory: Path) -> tuple[str, ...]:
    lines = [f"unbroken.neutral.load({str(directory)!r})"]
    if document.act is not None:
        lines.append(f"unbroken.neutral.load_policy({str(directory)!r})")
    if document.networks or document.replay:
        lines.append(f"unbroken.neutral.into_sb3({str(directory)!r}, model)")
    return tuple(lines)
