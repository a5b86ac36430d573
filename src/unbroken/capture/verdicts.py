"""What trials of environments found out, kept with the run.

How an environment is captured is decided by a trial before training, which on a busy machine can end
differently the next time: it takes too long, and another way is chosen, in which the checkpoints were not
written. So each checkpoint says how its environments were captured, and later starts follow it. A capturer of
the user's own is tried at each start: no trial changes the way.

Not promised: that a verdict still holds after the user's environment has changed. A run started with
`resume="never"` tries it out again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from unbroken.capture.environments import How, Verdict
from unbroken.errors import ConfigError, CorruptObject
from unbroken.repo.repository import Repository
from unbroken.types import Fidelity

KEY: Final = "environments"


def record(verdicts: Mapping[str, Verdict]) -> dict[str, Any]:
    """Return the verdicts as a fact to be told with each checkpoint; nothing where nothing was tried."""
    found = {
        kind: {"how": verdict.how.name, "fidelity": verdict.fidelity.value, "reason": verdict.reason}
        for kind, verdict in verdicts.items()
    }
    return {KEY: found} if found else {}


def recorded(root: Any, job: str) -> dict[str, Verdict]:
    """Return the verdicts that the newest readable checkpoint of a run tells; nothing if there is none."""
    try:
        repository = Repository.open(root, job)
    except ConfigError:
        return {}  # a run that is not there yet; what else may be wrong, the engine says
    for commit in repository.commits():
        try:
            return _read(repository.meta(commit).counters.get(KEY))
        except CorruptObject:
            continue  # the engine tells of it
    return {}


def _read(told: Any) -> dict[str, Verdict]:
    found: dict[str, Verdict] = {}
    for kind, entry in told.items() if isinstance(told, dict) else ():
        try:
            verdict = Verdict(How[entry["how"]], Fidelity(entry["fidelity"]), str(entry["reason"]))
        except (KeyError, TypeError, ValueError):
            continue  # of another version: tried out again
        if verdict.how is not How.CAPTURER:  # a person has written it, and may have corrected it since
            found[kind] = verdict
    return found
