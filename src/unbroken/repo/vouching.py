"""Who vouches for the pickled parts of a checkpoint: a key of ours, another one, or nobody."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from unbroken.format import manifest as manifests
from unbroken.format.manifest import Manifest
from unbroken.repo.keys import HeldKey, held_keys


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


@dataclass(frozen=True, slots=True)
class Voucher:
    """Who vouches for the pickled parts of a checkpoint, in words. `key` is the name in its signature."""

    verdict: Vouching
    key: str = ""

    def __str__(self) -> str:
        """What is said of pickled parts, behind "pickled parts"."""
        if self.verdict is Vouching.OTHER:
            return f"that are signed with the key {self.key}, which is not held here"
        if self.verdict is Vouching.FORGED:
            return f"whose signature is forged: it names the key {self.key}, which is held here and has not made it"
        if self.verdict is Vouching.UNSIGNED:
            return "and no signature"
        return "that are signed with a key that is held here" if self.verdict.is_ours else "no more"

    @property
    def hint(self) -> str:
        """What a person can do who wants them loaded."""
        listed = 'trust={"module.Class"} lets the classes be loaded that it names, trust=True all of them.'
        if self.verdict is Vouching.FORGED:
            return "Somebody has changed it: go on from another step or a mirror, and load it under no trust."
        if self.verdict is Vouching.UNSIGNED:
            return f"If you know who wrote it: {listed}"
        return (
            "Set UNBROKEN_KEY to the key of its writer; `unbroken key --export` prints it where it was written."
            f" Else {listed}"
        )


def voucher(manifest: Manifest, held: Iterable[HeldKey] | None = None) -> Voucher:
    """Return who vouches for a checkpoint; without `held` the keys of this user can say.

    Raises:
        ConfigError: a key cannot be used.
    """
    name = manifest.signature.key if manifest.signature is not None else ""
    return Voucher(vouching(manifest, held_keys() if held is None else held), name)
