"""What Lightning's `ModelCheckpoint` remembers of the files that it has written.

Scores come back, so that what is best stays best over every start; files are named by where they lie below the
callback's directory, so that a run may move. Two things are taken care of beside:

- A file that the killed process wrote after the checkpoint does not count as there: training comes to it again
  and writes it again, under its own name and not beside it under another.
- What lies outside of the callback's own directory is never removed, whatever its score.

Not promised: files that somebody else writes to the same directory while the run is down.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import ModelCheckpoint

from unbroken.capture.hooks import Hook
from unbroken.state.nodes import Dict, List, Value
from unbroken.state.policy import Captor

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

PATHS = {
    "best": "best_model_path",
    "kth": "kth_best_model_path",
    "last": "last_model_path",
    "newest": "_last_checkpoint_saved",
}
HOOKS = ("file_exists", "_remove_checkpoint")
NOWHERE = f"{os.devnull}/nothing"
"""A path where no file can be."""
OWN = frozenset({"best_k_models", "dirpath", "_fs", "_last_time_checked", *PATHS.values(), *HOOKS})
"""Attributes that the captor writes, and those that belong to the process."""

_names: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()
"""By callback: path -> name, of files that lie in a directory that the callback had at an earlier start."""


class FilesCaptor:
    """Captor of `ModelCheckpoint`."""

    def attributes(self, obj: Any) -> None:
        return None

    def capture(self, obj: ModelCheckpoint, walk: Walk) -> dict[str, Value]:
        names = {path: _name(obj, path) for path in _paths(obj)}
        scores = {names[path]: score for path, score in obj.best_k_models.items()}
        found: dict[str, Value] = {
            "scores": walk.child("<scores>", scores),
            "names": Dict(v={key: names.get(getattr(obj, path), "") for key, path in PATHS.items()}),
        }
        if walk.contents:
            paths: dict[str, Value] = {name: path for path, name in names.items()}
            files: list[Value] = [*sorted(_files(obj))]
            place: dict[str, Value] = {
                "directory": _directory(obj),
                "paths": Dict(v=paths),
                "files": List(v=files),
            }
            found["place"] = Dict(v=place)
        return found

    def plan(self, extra: dict[str, Value], obj: ModelCheckpoint, graft: Graft) -> None:
        scores = graft.value("<scores>", extra.get("scores"))
        names, place = _fields(extra.get("names")), _fields(extra.get("place"))
        paths, files = _fields(place.get("paths")), place.get("files")
        if not isinstance(scores, dict) or not isinstance(files, List):
            graft.error("was saved without its files.")
            return
        before = {file for file in files.v if isinstance(file, str)}
        known = {name: path for name, path in paths.items() if isinstance(path, str)}
        graft.write(_put_back, obj, scores, names, known, before, place.get("directory"))


def _put_back(
    obj: ModelCheckpoint,
    scores: dict[str, Any],
    names: dict[str, Value],
    paths: dict[str, str],
    before: set[str],
    directory: object,
) -> None:
    _names[obj] = {path: name for name, path in paths.items()}
    obj.best_k_models = {paths.get(name, name): score for name, score in scores.items()}
    for key, attribute in PATHS.items():
        name = names.get(key)
        vars(obj)[attribute] = paths.get(name, name) if isinstance(name, str) else ""
    if directory == _directory(obj):
        top = os.path.abspath(_directory(obj))  # a logger may have named it, by a path that is not
        _Unwritten(obj, {os.path.join(top, file) for file in _files(obj) - before})
    else:
        _NotMine(obj)


class _Unwritten:
    """Takes files for absent until they are written again."""

    def __init__(self, obj: ModelCheckpoint, files: set[str]) -> None:
        self._files = files
        self._hook = Hook(obj, "file_exists", self._exists, keeper=self)
        if files:
            self._hook.install()

    def _exists(self, filepath: Any, trainer: Any) -> Any:
        path = os.path.abspath(filepath)
        if path in self._files:
            self._files.discard(path)
            filepath = (
                NOWHERE  # asked all the same: of several ranks each has to, and hears what rank 0 finds
            )
        return self._hook.original(filepath, trainer)


class _NotMine:
    """Keeps a callback from removing what lies outside of its directory."""

    def __init__(self, obj: ModelCheckpoint) -> None:
        self._obj = obj
        self._hook = Hook(obj, "_remove_checkpoint", self._remove, keeper=self)
        self._hook.install()

    def _remove(self, trainer: Any, filepath: str) -> None:
        if _inside(filepath, _directory(self._obj)):
            self._hook.original(trainer, filepath)


def release(callbacks: Iterable[object]) -> None:
    """Take every hook away."""
    for callback in callbacks:
        for name in HOOKS:
            hook = getattr(callback, "__dict__", {}).get(name)
            if isinstance(hook, Hook):
                hook.remove()


def _paths(obj: ModelCheckpoint) -> list[str]:
    found = [*obj.best_k_models, *(getattr(obj, path) for path in PATHS.values())]
    return [path for path in dict.fromkeys(map(str, found)) if path]


def _name(obj: ModelCheckpoint, path: str) -> str:
    directory = _directory(obj)
    if _inside(path, directory):
        return path[len(directory) :].lstrip("/")
    return _names.get(obj, {}).get(path, path)


def _inside(path: str, directory: str) -> bool:
    return bool(directory) and path.startswith(directory.rstrip("/") + "/")


def _directory(obj: ModelCheckpoint) -> str:
    return "" if obj.dirpath is None else str(obj.dirpath)


def _files(obj: ModelCheckpoint) -> set[str]:
    """Return the files in the callback's directory; none if that is not on this machine's disks."""
    top = _directory(obj)
    if not top or "://" in top:
        return set()
    return {
        os.path.relpath(os.path.join(folder, file), top)
        for folder, _, files in os.walk(top)
        for file in files
    }


def _fields(node: Value) -> dict[str, Value]:
    return node.v if isinstance(node, Dict) and node.v is not None else {}


_captor = FilesCaptor()


def files_rule(obj: object) -> Captor | None:
    """Return the captor of a `ModelCheckpoint`, None for anything else."""
    return _captor if isinstance(obj, ModelCheckpoint) else None
