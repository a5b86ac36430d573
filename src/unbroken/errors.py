"""Every error that Unbroken raises, one class per decision a caller can make.

```
UnbrokenError
├── ConfigError            an argument, a setting or a file cannot be used; nothing was done
├── StoreError             the place where checkpoints live failed
│   ├── StoreUnavailable   the operation may succeed when tried again
│   ├── StoreFull          no room or quota left; what was committed is intact
│   ├── StoreDenied        read-only or not permitted
│   └── ObjectMissing      an object that should be there is not
├── RunBusy                another live process works on this run
├── Fenced                 a newer process took the run over: stop at once
├── CommitConflict         somebody else took this sequence number: take the next
├── AmbiguousCommit        it is unknown whether the commit happened: look before repeating
├── CorruptObject          bytes differ from their digest: fall back to an older checkpoint
│   └── ObjectBlocked      no file stands in an object's place, or one that may not be read; a StoreError, too
├── Rejected               a checkpoint is whole and not good enough: the next older one is tried
├── UnsupportedFormat      written by a newer Unbroken, or needs a feature this one lacks
├── Untrusted              holds pickled parts and no valid signature
├── NotCapturable          a part of the state cannot be saved faithfully
├── StateMismatch          the checkpoint does not fit what the script built
├── RestoreFailed          after the restore the state is not what was saved
├── NoUsableCheckpoint     commits exist, none can be used
├── RankMissing            a rank died, stopped or was late; the others go no further together
├── ServerMissing          a server of NeMo Gym did not answer, or not in time
├── ReplicasDiffer         ranks that must hold the same do not: look before training on
├── SaveFailed             a save in the background failed; raised at the next call
├── Unproved               a proof could not be carried out; it says neither equal nor different
└── InternalError          a bug in Unbroken; please report it
```

Each carries `hint`, the next step in one sentence: the one given where it is raised, which knows more (a command
in it names the run that is meant), else the one of its class. Only `ConfigError`, `StateMismatch` and `NotCapturable` have none of their
own: what to do then depends on the case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

SHOWN = 60
"""Letters of a value that a message shows."""


def shown(value: object) -> str:
    """Return a value that cannot be used as a message shows it: never longer than a line.

    >>> shown("soon"), shown("x" * 99)[-3:], shown(1 << 99999)
    ("'soon'", 'xx…', 'a number of 100000 bits')
    """
    if isinstance(value, int) and value.bit_length() > 4 * SHOWN:
        return f"a number of {value.bit_length()} bits"
    try:
        text = repr(value[: SHOWN + 1] if isinstance(value, (str, bytes)) else value)
    except ValueError:  # a number of too many digits is somewhere in it
        return f"this {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def installing(*names: str) -> str:
    """Return the hint of an error about optional libraries. They are named, and no extra of this package: that
    works wherever the package itself has come from.

    >>> installing("obstore")
    'Run: pip install obstore'
    """
    return f"Run: pip install {' '.join(names)}"


class UnbrokenError(Exception):
    """Base of all errors of this package.

    `str(error)` is one sentence that says what happened and `hint`, the next step. `default_hint` is
    what a class advises where its raiser has nothing better.
    """

    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.default_hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class ConfigError(UnbrokenError, ValueError):
    """An argument, a setting or a file cannot be used. Nothing was done."""


class StoreError(UnbrokenError, OSError):
    """The store failed. `key` is the object it was about, relative to the store."""

    default_hint = "Look at the path and its file system, then start again."

    def __init__(self, message: str, *, hint: str = "", key: str = "") -> None:
        super().__init__(message, hint=hint)
        self.key = key


class StoreUnavailable(StoreError):
    """The store did not answer or failed in passing; the same operation may succeed later."""

    default_hint = "Try again; what was committed before is intact."


class StoreFull(StoreError):
    """No room or quota is left. Everything that was committed before is intact."""

    default_hint = "Free space, and keep fewer checkpoints (keep_last)."


class StoreDenied(StoreError):
    """The store is read-only, or this user may not write to it."""

    default_hint = "Check owner and mode of the folder, or choose another root."


class ObjectMissing(StoreError, KeyError):
    """An object that should exist does not."""

    default_hint = "Run `unbroken verify` to see what else is missing."

    def __str__(self) -> str:  # KeyError would print the repr
        return UnbrokenError.__str__(self)


class RunBusy(UnbrokenError):
    """Another live process works on this run."""

    default_hint = "Stop that process, wait for it, or start this one under another name."


class Fenced(UnbrokenError):
    """A newer process has taken this run over; this one must stop writing at once.

    `epoch` is the newer one, `key` the record that claims it.
    """

    default_hint = "Stop this process. What it had committed before is kept."

    def __init__(self, message: str, *, hint: str = "", key: str = "", epoch: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.key = key
        self.epoch = epoch


class CommitConflict(UnbrokenError):
    """Another writer took the sequence number; the same content may be committed under the next.

    `key` is the last record that was found taken, `epoch` that of the writer that found it.
    """

    default_hint = "Look for a second writer on this run."

    def __init__(self, message: str, *, hint: str = "", key: str = "", epoch: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.key = key
        self.epoch = epoch


class AmbiguousCommit(UnbrokenError):
    """The store failed while committing and cannot say whether the commit happened.

    `key` is the commit record, `epoch` that of its writer.
    """

    default_hint = "Start again when the store answers: the newest commit is found then."

    def __init__(self, message: str, *, hint: str = "", key: str = "", epoch: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.key = key
        self.epoch = epoch


class CorruptObject(UnbrokenError):
    """The bytes of an object differ from what was recorded when it was written."""

    default_hint = "Run `unbroken verify`; an older checkpoint can be used where there is one."

    def __init__(self, message: str, *, hint: str = "", key: str = "", digest: str = "") -> None:
        super().__init__(message, hint=hint)
        self.key = key
        self.digest = digest


class Rejected(UnbrokenError):
    """A checkpoint can be read and is not good enough to go on from: the next older one is tried.

    It is not damaged. So it stays where it is, and keeps its place among those that are kept.
    """

    default_hint = "Name its step to take it all the same."


class ObjectBlocked(CorruptObject, StoreError):
    """What stands in an object's place is no file (a link, a pipe, a directory), or may not be read.

    Damage of that one object and of nothing else: whoever can do without it goes on.
    """

    default_hint = "Remove what stands there, or put the file back."


class UnsupportedFormat(UnbrokenError):
    """The format is newer than this Unbroken, or needs a feature that it lacks."""

    default_hint = "Upgrade unbroken."


class Untrusted(UnbrokenError):
    """The checkpoint holds pickled parts and carries no valid signature. None was executed."""

    default_hint = "Set UNBROKEN_KEY to the key of its writer, or trust=True if you trust its origin."

    def __init__(self, message: str, *, hint: str = "", places: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint)
        self.places = tuple(places)


class NotCapturable(UnbrokenError):
    """A part of the state can be neither saved nor kept from the freshly built object."""

    def __init__(self, message: str, *, hint: str = "", place: str = "") -> None:
        super().__init__(message, hint=hint)
        self.place = place


class StateMismatch(UnbrokenError):
    """The checkpoint does not fit the objects that the script has built. Nothing was touched.

    `differences` lists each one, as text.
    """

    def __init__(self, message: str, *, hint: str = "", differences: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint)
        self.differences = tuple(differences)

    def __str__(self) -> str:
        return _listed(self)


def _listed(error: StateMismatch | ReplicasDiffer) -> str:
    shown = [f"\n  - {line}" for line in error.differences[:20]]
    if len(error.differences) > 20:
        shown.append(f"\n  - … and {len(error.differences) - 20} more")
    return error.message + "".join(shown) + (f"\n{error.hint}" if error.hint else "")


class RestoreFailed(UnbrokenError):
    """The live state after the restore is not what was saved; the process must not train on."""

    default_hint = "Start again; if it comes back, go on from an older checkpoint and report it."


class NoUsableCheckpoint(UnbrokenError):
    """Commits exist and none can be used. `reasons` holds one line for each."""

    default_hint = "Go on from a mirror, or start anew in another folder."

    def __init__(self, message: str, *, hint: str = "", reasons: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint)
        self.reasons = tuple(reasons)

    def __str__(self) -> str:
        lines = "".join(f"\n  - {reason}" for reason in self.reasons)
        return self.message + lines + (f"\n{self.hint}" if self.hint else "")


class RankMissing(UnbrokenError):
    """Some ranks of a run said nothing in time. What was committed before is intact. `ranks` are their numbers.

    `full`: they are there, and have said that no room was left for what they had to write.
    """

    default_hint = "Look at the processes of those ranks."

    def __init__(
        self, message: str, *, hint: str = "", ranks: Iterable[int] = (), full: bool = False
    ) -> None:
        super().__init__(message, hint=hint)
        self.ranks = tuple(ranks)
        self.full = full


class ServerMissing(UnbrokenError):
    """Servers of NeMo Gym did not answer, or not in time. Those that did go on. `servers` are their names."""

    default_hint = "Look at those servers, and start again; what was committed before is intact."

    def __init__(self, message: str, *, hint: str = "", servers: Iterable[str] = ()) -> None:
        super().__init__(message, hint=hint)
        self.servers = tuple(servers)


class ReplicasDiffer(UnbrokenError):
    """Ranks that must hold the same state do not. Nothing was committed.

    `differences` names rank, place and distance of each, as text.
    """

    default_hint = (
        "Find out why before training on. If they need not be the same, leave them out of `replicated`."
    )

    def __init__(self, message: str, *, hint: str = "", differences: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint)
        self.differences = tuple(differences)

    def __str__(self) -> str:
        return _listed(self)


class SaveFailed(UnbrokenError):
    """A save that ran in the background failed. `__cause__` says why.

    Raised at the next call on the engine, at the latest by `close()`.
    """

    default_hint = "Remove the cause; what was committed before is intact."


class Unproved(UnbrokenError):
    """A proof could not be carried out: the script failed, or was never restored from a checkpoint.

    `log` holds the last lines that the script wrote to its standard error.
    """

    default_hint = "Read what the script wrote, and prove again."

    def __init__(self, message: str, *, hint: str = "", log: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint)
        self.log = tuple(log)

    def __str__(self) -> str:
        lines = "".join(f"\n  | {line}" for line in self.log)
        return self.message + lines + (f"\n{self.hint}" if self.hint else "")


class InternalError(UnbrokenError):
    """A bug in Unbroken."""

    default_hint = "Please report it with the traceback."
