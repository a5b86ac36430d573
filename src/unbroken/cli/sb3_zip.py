"""`unbroken export RUN --to sb3-zip FILE`: the part of the command that writes SB3's own file of a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from unbroken.cli.placing import check_file, replace_file
from unbroken.format.neutral import Left
from unbroken.inspection.sb3_zip import contents_of
from unbroken.inspection.target import Target
from unbroken.report.quantity import counted, size

NAME = "sb3-zip"
"""What `--to` calls this layout."""
SUFFIX = ".zip"


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written where."""

    checkpoint: str
    file: str
    format: str
    model: str
    steps: int
    tensors: int
    left: tuple[Left, ...]
    bytes: int
    load: tuple[str, ...]
    """How to load the file, in Python."""


def export_zip(target: Target, named: Path, *, force: bool) -> tuple[Exported, list[str]]:
    """Write the file of a checkpoint; return what it holds, and what to tell of it.

    Raises:
        ConfigError: the place cannot be used, the checkpoint holds no model of SB3 or not all that SB3 keeps, or a
            package is missing.
        CorruptObject: it is damaged.
    """
    # As SB3 does it, whose load looks for this name too.
    path = named if named.suffix else named.with_name(f"{named.name}{SUFFIX}")
    check_file(path, force=force)
    commit, contents = target.read(lambda commit: (commit, contents_of(target.repository, commit)))
    replace_file(path, contents.write)
    model, tensors = contents.model, len(contents.states["policy"])
    custom = ", ".join(f"{name!r}: …" for name in model.replaced if name != "lr_schedule")
    result = Exported(
        checkpoint=target.place(commit),
        file=str(path),
        format=NAME,
        model=model.name,
        steps=int(model.data["num_timesteps"]),
        tensors=tensors,
        left=contents.left,
        bytes=path.stat().st_size,
        load=(f"{model.name}.load({str(path)!r}{custom and f', custom_objects={{{custom}}}'})",),
    )
    held = f"{counted(tensors, 'tensor')}, {size(result.bytes)}"
    lines = [
        f"{model.name.rpartition('.')[2]} of {result.checkpoint} -> {path} ({held})",
        *(f"  left     {left.what}: {left.why}" for left in result.left),
        *(f"To load: {line}" for line in result.load),
    ]
    return result, lines
