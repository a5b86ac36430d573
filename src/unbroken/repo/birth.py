"""`birth.json`: the state tree at the start of training, without the contents of arrays.

Captured again at every start, it shows what the user has changed in the script. It names no blobs, so
nothing else has to exist for it to be read.
"""

from __future__ import annotations

import msgspec

from unbroken.errors import CorruptObject, InternalError
from unbroken.format import document, layout
from unbroken.format.wire import FORMAT_VERSION, check_version
from unbroken.repo.seal import seal_json, unseal_json
from unbroken.state.snapshot import Component, Snapshot

_MAGIC = "unbroken birth"


class _Birth(msgspec.Struct, kw_only=True):
    magic: str
    version: int
    job: str
    time: float
    components: dict[str, msgspec.Raw]


def encode(skeleton: Snapshot, *, job: str, time: float) -> bytes:
    """Return the bytes of `birth.json`."""
    components: dict[str, msgspec.Raw] = {}
    for name, component in sorted(skeleton.components.items()):
        if component.blobs:
            raise InternalError(f"The birth document of {name!r} has array contents.")
        components[name] = msgspec.Raw(document.encode(component, [], "json"))
    body = _Birth(magic=_MAGIC, version=FORMAT_VERSION, job=job, time=time, components=components)
    return seal_json(msgspec.json.format(msgspec.json.encode(body), indent=1))


def decode(data: bytes, *, key: str = layout.BIRTH) -> Snapshot:
    """Return the skeleton in `data`; only `CorruptObject` and `UnsupportedFormat` are raised."""
    unseal_json(data, key=key)
    try:
        birth = msgspec.json.decode(data, type=_Birth)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptObject(f"{key} is not readable: {error}.", key=key) from error
    check_version(birth.version, key=key)
    if birth.magic != _MAGIC:
        raise CorruptObject(f"{key} is not a birth document.", key=key)
    snapshot = Snapshot()
    for name, raw in birth.components.items():
        found = document.decode(bytes(raw), "json", key=key)
        if found.component != name or found.blobs:
            raise CorruptObject(f"{key} holds a document that does not belong there.", key=key)
        snapshot.components[name] = Component(name=name, roots=found.roots, tensors=found.tensors)
    return snapshot
