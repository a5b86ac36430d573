"""Who vouches for the pickled parts of a checkpoint: a key of ours, another one, or nobody."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from unbroken.format import manifest as manifests
from unbroken.format.manifest import Manifest
from unbroken.repo.keys import HeldKey


class Vouching(str, Enum):
    """What a signature, or the lack of one, says."""

    NEEDLESS = "not needed"
    """Nothing in it is pickled, and nothing is signed."""
    OURS = "signed with the key in use"
    FORMER = "signed with a retired key"
    OTHER = "signed with a key that is not held here"
    FORGED = "says that a key of ours has signed it, which is not so"
    UNSIGNED = "pickled parts and no signature"

    @property
    def is_ours(self) -> bool:
        """Whether pickled parts may be loaded on the word of the signature."""
        return self in (Vouching.OURS, Vouching.FORMER)


def vouching(manifest: Manifest, held: Iterable[HeldKey]) -> Vouching:
    """Return who vouches for a checkpoint, as far as the keys that are `held` can say."""
    if manifest.signature is None:
        return Vouching.UNSIGNED if manifest.opaque else Vouching.NEEDLESS
    named = False
    for key in held:
        if manifests.signature_valid(manifest, key.key):
            return Vouching.FORMER if key.retired else Vouching.OURS
        named = named or key.name == manifest.signature.key
    return Vouching.FORGED if named else Vouching.OTHER
