"""How the loggers of a trainer are called: by class, in order, as `CSVLogger` and `CSVLogger#2`.

Invariant: one that writes where a checkpoint's did keeps its name, whichever others a script adds, takes away or moves:
what is told of one never goes to another.

Not promised: which is which, of several of one class that all write elsewhere now; if there are as many as before,
they are taken in order, and otherwise each is new.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any

from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger


def named(loggers: Iterable[Any], known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return loggers by name, in their order. `known`: where those of a checkpoint wrote to."""
    listed = list(loggers)
    names: dict[int, str] = {}
    for kind in dict.fromkeys(type(logger).__qualname__ for logger in listed):
        alike = [logger for logger in listed if type(logger).__qualname__ == kind]
        names.update(_of_kind(kind, alike, known))
    return {names[id(logger)]: logger for logger in listed}


def _of_kind(kind: str, loggers: list[Any], known: Mapping[str, Mapping[str, Any]]) -> dict[int, str]:
    told = [name for name in known if name.partition("#")[0] == kind]
    names: dict[int, str] = {}

    def without_name() -> list[Any]:
        return [logger for logger in loggers if id(logger) not in names]

    def still_told() -> list[str]:
        return [name for name in told if name not in names.values()]

    same: Callable[[Any, Mapping[str, Any]], bool]
    for same in (_writes_there, would_write_there):
        for logger in without_name():
            if not isinstance(logger, (TensorBoardLogger, CSVLogger)):
                continue  # nothing is told of where others write to
            found = next((name for name in still_told() if same(logger, known[name])), None)
            if found is not None:
                names[id(logger)] = found
    if len(without_name()) == len(still_told()):
        names.update((id(logger), name) for logger, name in zip(without_name(), still_told(), strict=True))
    new = (name for i in count(1) if (name := kind if i == 1 else f"{kind}#{i}") not in told)
    names.update((id(logger), name) for logger, name in zip(without_name(), new, strict=False))
    return names


def _writes_there(logger: Any, told: Mapping[str, Any]) -> bool:
    return bool(os.path.abspath(logger.log_dir) == told.get("path"))


def would_write_there(logger: Any, told: Mapping[str, Any]) -> bool:
    """Whether a logger of the version that is told of would write to the directory that is told of."""
    version = logger.version
    logger._version = told.get("version")
    try:
        return _writes_there(logger, told)
    finally:
        logger._version = version
