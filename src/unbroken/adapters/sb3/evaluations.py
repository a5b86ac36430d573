"""What EvalCallback leaves on the disk: `best_model.zip` and `evaluations.npz`, as they were at the checkpoint.

Its scores and counts are attributes and come back by themselves. The best model is a file, which only the
next better score writes again: where a start writes elsewhere (another machine, a directory of its own, as
RL Zoo makes one), or where it redoes what has written a better one, the file would be missing or be of a
training that is gone. So the file is part of the checkpoint: stored once for each best model, and left as it is
where it is the same. `evaluations.npz` is written from the scores.

Not promised: files that other callbacks write. Where a callback writes is a matter of each start.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from unbroken.capture.class_rule import ClassRule
from unbroken.capture.whole_file import cannot_be_written, write_whole
from unbroken.state.nodes import Bytes, Value

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

BEST = "best_model"

_Stamp = tuple[int, int, int]
_read: weakref.WeakKeyDictionary[Any, tuple[_Stamp, bytes]] = weakref.WeakKeyDictionary()
"""By callback: the best model's file as it was read, and by what it is recognized."""


class EvalCaptor:
    """Captor of EvalCallback: adds the file of the best model."""

    def attributes(self, obj: Any) -> None:
        return None

    def capture(self, obj: Any, walk: Walk) -> dict[str, Value]:
        # A file that is there before any evaluation is somebody else's.
        if not walk.contents or obj.best_model_save_path is None or not np.isfinite(obj.best_mean_reward):
            return {}
        try:
            content = _content(obj, _best(obj))
        except FileNotFoundError:
            return {}
        except OSError as error:
            walk.note("not captured", f"{_best(obj)} cannot be read: {error.strerror}")
            return {}
        return {BEST: Bytes(b=walk.adopt(np.frombuffer(content, np.uint8)))}

    def plan(self, extra: dict[str, Value], obj: Any, graft: Graft) -> None:
        saved = extra.get(BEST)
        if not isinstance(saved, Bytes):
            graft.error("was saved without its best model.")
        elif obj.best_model_save_path is None:
            graft.note_at(f"<{BEST}>", "lost", "was saved, and the program keeps no best model any more.")
        else:
            graft.write(_put_back, obj, graft.bytes_of(saved.b, saved.v).tobytes())


def _best(callback: Any) -> str:
    return os.path.join(callback.best_model_save_path, f"{BEST}.zip")


def _content(callback: Any, path: str) -> bytes:
    """Return the file's content, read anew only when the file is another one."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
        known = _read.get(callback)
        if known is None or known[0] != stamp:
            known = _read[callback] = stamp, file.read()
    return known[1]


def _put_back(callback: Any, content: bytes) -> None:
    path = _best(callback)
    with suppress(OSError):
        if _content(callback, path) == content:
            return
    _write(path, lambda file: file.write(content))


def write_scores(callback: Any) -> None:
    """Let `evaluations.npz` hold the evaluations that `callback` knows of."""
    if callback.log_path is None or not callback.evaluations_timesteps:
        return
    found = {
        "timesteps": callback.evaluations_timesteps,
        "results": callback.evaluations_results,
        "ep_lengths": callback.evaluations_length,
    }
    if callback.evaluations_successes:
        found["successes"] = callback.evaluations_successes
    _write(f"{callback.log_path}.npz", lambda file: np.savez(file, **found))


def _write(path: str, fill: Callable[[IO[bytes]], object]) -> None:
    try:
        write_whole(path, fill)
    except OSError as error:
        raise cannot_be_written(f"The evaluation's file {path}", error) from error


evaluation_rule = ClassRule(EvalCaptor(), "stable_baselines3.common.callbacks:EvalCallback")
