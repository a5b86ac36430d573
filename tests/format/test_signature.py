"""A signature covers every field of a manifest, and nothing else decides."""

from __future__ import annotations

import msgspec
import pytest

from unbroken.format import manifest as manifests
from unbroken.format.digest import digest_of
from unbroken.format.manifest import DocumentEntry, Manifest, canonical, signature_valid, signed
from unbroken.format.signature import Signature, key_name, sign, verify
from unbroken.types import Epoch, Step, WriteId

KEY, OTHER = b"k" * 32, b"o" * 32
DIGEST = digest_of(b"x")
MANIFEST = Manifest(
    job="run",
    step=Step(1),
    epoch=Epoch(1),
    write_id=WriteId("ab"),
    meta=DIGEST,
    documents={"model.json": DocumentEntry(component="model", digest=DIGEST, size=10)},
    blobs={DIGEST: 1, digest_of(b"y"): 2},
    opaque=["model/x"],
)


def test_a_signed_manifest_comes_back_valid() -> None:
    again = manifests.decode(manifests.encode(signed(MANIFEST, KEY)))
    assert signature_valid(again, KEY) is True
    assert signature_valid(again, OTHER) is False
    assert signature_valid(MANIFEST, KEY) is None


@pytest.mark.parametrize(
    "change",
    [
        {"job": "other"},
        {"step": Step(2)},
        {"epoch": Epoch(2)},
        {"write_id": WriteId("ac")},
        {"meta": digest_of(b"z")},
        {"documents": {}},
        {"blobs": {DIGEST: 1}},
        {"opaque": []},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_is_covered(change: dict[str, object]) -> None:
    forged = msgspec.structs.replace(signed(MANIFEST, KEY), **change)
    assert signature_valid(forged, KEY) is False


def test_canonical_bytes_do_not_depend_on_order_or_signature() -> None:
    other_order = msgspec.structs.replace(MANIFEST, blobs=dict(reversed(MANIFEST.blobs.items())))
    assert list(other_order.blobs) != list(MANIFEST.blobs)
    assert canonical(other_order) == canonical(MANIFEST) == canonical(signed(MANIFEST, KEY))
    assert b"\n" not in canonical(MANIFEST)


def test_a_foreign_algorithm_is_not_believed() -> None:
    signature = sign(KEY, b"data")
    assert verify(KEY, b"data", signature)
    assert not verify(KEY, b"data", msgspec.structs.replace(signature, algorithm="none"))
    assert not verify(KEY, b"data", Signature(algorithm="none", key="", value=""))
    assert not verify(KEY, b"data", msgspec.structs.replace(signature, value="é\ud800"))


def test_key_names_tell_keys_apart_and_do_not_show_them() -> None:
    assert key_name(KEY) == key_name(KEY) != key_name(OTHER)
    assert sign(KEY, b"").key == key_name(KEY)
    assert key_name(KEY) not in sign(KEY, b"").value
