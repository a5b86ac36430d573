"""Names: where each object of a run lies, as keys of a store. Pure; see docs/format.md."""

from __future__ import annotations

import re
from urllib.parse import quote

from unbroken.format.manifest import DocumentFormat
from unbroken.types import Digest, Epoch, Sequence, Step, WriteId

FORMAT = "format.json"
LATEST = "latest.txt"
PENDING = "pending.json"
HISTORY = "history.jsonl"
LEASE = "lease.json"
WORKERS = "workers.json"
LOW_WATER = "low_water.json"
BALLAST = "ballast"
META = "meta.json"
MANIFEST = "manifest.json"

STEPS = "steps"
COMMITS = "commits"
PACKS = "packs"
EPOCHS = "epochs"
BIRTHS = "births"

_COMMIT = re.compile(r"commits/([0-9]{10})\.json\Z", re.ASCII)
_BIRTH = re.compile(r"births/(b3|sha256)-([0-9a-f]{64})\.json\Z", re.ASCII)
_EPOCH = re.compile(r"epochs/([0-9]{10})(\.start)?\.json\Z", re.ASCII)


def birth(name: Digest) -> str:
    """Return the key of the birth document with this digest.

    >>> birth(Digest("b3:0a"))
    'births/b3-0a.json'
    """
    return f"{BIRTHS}/{name.replace(':', '-')}.json"


def birth_name(key: str) -> Digest | None:
    """Return the digest of the birth document that a key stands for; None for any other key."""
    match = _BIRTH.match(key)
    return Digest(f"{match[1]}:{match[2]}") if match else None


def checkpoint(step: Step, write_id: WriteId) -> str:
    """Return the directory of a checkpoint. A write id is never used twice, so neither is the name.

    >>> checkpoint(Step(12000), WriteId("a1"))
    'steps/step_000000012000-a1'
    """
    return f"{STEPS}/step_{step:012d}-{write_id}"


def document(component: str, fmt: DocumentFormat) -> str:
    """Return the file name of a component's document; unusual characters are percent-encoded.

    >>> document("policy_weights", "json")
    'policy_weights.json'
    """
    name = quote(component.encode("utf-8", "surrogatepass"), safe="+,=@")
    name = name.replace("~", "%7E")
    if name in ("meta", "manifest") or name.startswith("."):
        name = f"%{ord(name[0]):02X}{name[1:]}"
    return f"{name}.{fmt}"


def commit(sequence: Sequence) -> str:
    """Return the key of a commit record."""
    return f"{COMMITS}/{sequence:010d}.json"


def commit_sequence(key: str) -> Sequence | None:
    """Return the sequence number that a key stands for, or None if it is no commit record's key."""
    match = _COMMIT.match(key)
    return Sequence(int(match[1])) if match else None


def epoch(number: Epoch) -> str:
    """Return the key of the record that claims an epoch."""
    return f"{EPOCHS}/{number:010d}.json"


def epoch_start(number: Epoch) -> str:
    """Return the key of an epoch's start record."""
    return f"{EPOCHS}/{number:010d}.start.json"


def epoch_number(key: str) -> Epoch | None:
    """Return the number of the epoch that a key claims; None for any other key."""
    match = _EPOCH.match(key)
    return Epoch(int(match[1])) if match and match[2] is None else None


def pack(name: str) -> str:
    """Return the key of a pack. Those of one writer lie together, so a save rarely needs a new directory.

    >>> pack("3f9c2e01ab44e7")
    'packs/e7/3f9c2e01ab44e7.pack'
    """
    return f"{PACKS}/{_shelf(name)}/{name}.pack"


def index(name: str) -> str:
    """Return the key of a pack's index."""
    return f"{PACKS}/{_shelf(name)}/{name}.idx"


def _shelf(name: str) -> str:
    return f"e{name.rpartition('e')[2]}"


def pack_name(key: str) -> str | None:
    """Return the name of the pack that a key of a pack or index stands for, or None."""
    stem, dot, suffix = key.rpartition(".")
    name = stem.rpartition("/")[2]
    return name if dot and suffix in ("pack", "idx") and key in (pack(name), index(name)) else None
