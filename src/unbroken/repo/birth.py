"""Birth documents: the state tree at the start of training, without the contents of arrays.

Captured again at every start, it shows what the user has changed in the script. Once a change was
adopted, later commits are born from another document than earlier ones; so each commit names its own,
by digest. It names no blobs, so nothing else has to exist for it to be read.
"""

from __future__ import annotations

import msgspec

from unbroken.errors import CorruptObject, InternalError, ObjectMissing
from unbroken.format import document, layout
from unbroken.format.digest import digest_of, matches
from unbroken.format.wire import FORMAT_VERSION, check_version
from unbroken.state.snapshot import Component, Snapshot
from unbroken.store.base import ByteStore
from unbroken.types import Digest

_MAGIC = "unbroken birth"


class _Birth(msgspec.Struct, kw_only=True):
    magic: str
    version: int
    job: str
    segment: int
    components: dict[str, msgspec.Raw]


def encode(skeleton: Snapshot, *, job: str, segment: int) -> tuple[Digest, bytes]:
    """Return the name and the bytes of a birth document. Equal skeletons give equal documents."""
    components: dict[str, msgspec.Raw] = {}
    for name, component in sorted(skeleton.components.items()):
        if component.blobs:
            raise InternalError(f"The birth document of {name!r} has array contents.")
        components[name] = msgspec.Raw(document.encode(component, [], "json"))
    body = _Birth(magic=_MAGIC, version=FORMAT_VERSION, job=job, segment=segment, components=components)
    data = msgspec.json.format(msgspec.json.encode(body), indent=1)
    return digest_of(data), data


def decode(data: bytes, name: Digest, *, key: str) -> Snapshot:
    """Return the skeleton in `data`; only `CorruptObject` and `UnsupportedFormat` are raised."""
    if not matches(data, name):
        raise CorruptObject(f"{key} is damaged: its digest does not fit.", key=key, digest=name)
    try:
        birth = msgspec.json.decode(data, type=_Birth)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptObject(f"{key} is not readable: {error}.", key=key) from error
    check_version(birth.version, key=key)
    if birth.magic != _MAGIC:
        raise CorruptObject(f"{key} is not a birth document.", key=key)
    snapshot = Snapshot()
    for component, raw in birth.components.items():
        found = document.decode(bytes(raw), "json", key=key)
        if found.component != component or found.blobs:
            raise CorruptObject(f"{key} holds a document that does not belong there.", key=key)
        snapshot.components[component] = Component(name=component, roots=found.roots, tensors=found.tensors)
    return snapshot


def read(store: ByteStore, name: Digest) -> Snapshot:
    """Return the birth document of this name.

    Raises:
        CorruptObject: it is damaged or missing.
    """
    key = layout.birth(name)
    try:
        data = store.get(key)
    except ObjectMissing as error:
        raise CorruptObject(f"{key} is missing.", key=key, digest=name) from error
    return decode(data, name, key=key)
