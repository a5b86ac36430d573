"""The trial of Tune that an Algorithm is.

Tune tells every Trainable which trial it is, and RLlib loses that on the way. The directory of the trial, which a
restored experiment uses again, has the id in its name.
"""

from __future__ import annotations

import re
from typing import Any

_ID = re.compile(r"[0-9a-f]{5,8}_\d{5}")
"""As Tune makes them."""


def directory_of(algorithm: Any) -> str:
    """Return the name of the trial's directory; empty where there is no trial."""
    storage = getattr(algorithm, "_storage", None)
    return str(getattr(storage, "trial_dir_name", None) or "")


def trial_of(algorithm: Any) -> str:
    """Return what tells this trial from the others, the same at every start; empty where there is no trial.

    It is Tune's id, or the name of a directory that a person has named otherwise.
    """
    directory = directory_of(algorithm)
    found = _ID.findall(directory)
    return found[-1] if found else re.sub(r"[^A-Za-z0-9._-]+", "-", directory)[:64]


def is_of_another(algorithm: Any, checkpoint: object) -> bool:
    """Whether a checkpoint that Tune hands out lies in the directory of another trial.

    One that was fetched from afar lies in none, and passes for this trial's own.
    """
    storage = getattr(algorithm, "_storage", None)
    folders = str(checkpoint).split("/")
    return (
        storage is not None
        and storage.experiment_dir_name in folders
        and directory_of(algorithm) not in folders
    )
