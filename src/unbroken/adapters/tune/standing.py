"""Finds a pointer that still stands where Tune has deleted the one that it hands out.

`num_to_keep` deletes a trial's older pointers although a scheduler may have chosen one for another trial.
The checkpoints themselves are kept by other rules, so any pointer of the same trial leads near to it.

Not promised: which one that is. A pointer that is newer than the wished one is taken if no older one is left.
"""

from __future__ import annotations

import posixpath
from typing import Any

from pyarrow.fs import FileSelector, FileType  # type: ignore[import-untyped]
from ray import tune

from unbroken.format.pointer import FILE


def standing(given: Any) -> tuple[Any, str]:
    """Return what to restore from: `given` where it exists, else the nearest pointer beside it; and what to say."""
    checkpoint = getattr(given, "checkpoint", given)
    files: Any = getattr(checkpoint, "filesystem", None)
    if files is None:  # a path, of which Tune makes a checkpoint itself
        return given, ""
    if _exists(files, checkpoint.path):
        return given, ""
    parent, wished = posixpath.split(checkpoint.path.rstrip("/"))
    names = sorted(
        posixpath.basename(info.path)
        for info in files.get_file_info(FileSelector(parent, allow_not_found=True))
        if info.type == FileType.Directory and _exists(files, f"{info.path}/{FILE}")
    )
    if not names:
        return given, ""  # Tune's own error names the path
    chosen = max((name for name in names if name < wished), default=names[0])
    said = f"Tune has deleted its {wished} (num_to_keep), so {chosen} is used"
    found = tune.Checkpoint(posixpath.join(parent, chosen), filesystem=files)
    if given is checkpoint:
        return found, said
    return type(given)(checkpoint=found, metrics=given.metrics), said


def _exists(filesystem: Any, path: str) -> bool:
    found: Any = filesystem.get_file_info([path])[0].type
    return bool(found != FileType.NotFound)
