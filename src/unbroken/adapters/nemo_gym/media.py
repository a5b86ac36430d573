"""Images and the like, once each: a folder of blobs, and JSON in which they are named instead of spelled out.

An agent sends the whole conversation with each call, and with it every image so far. `lift` takes them out of the bytes
of a body, `lower` puts them back; both look at the text only, so that key order, spaces and escapes stay as they were.

`"data:image/png;base64,iVBOR…"` becomes `"unbroken-media:<digest>;image/png"`. Text that looks like such a name, or like one that
was set aside before, is set aside with one more tilde: `"unbroken-media:` becomes `"unbroken-media~:`.

Invariant: `lower(lift(body)) == body` for all bytes whatever. A body is cut at its quotation marks; every piece is
mapped by itself, no mapping writes a quotation mark, and no two pieces are mapped to the same.
Not promised: that anything is ever removed from the folder.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from pathlib import Path

from blake3 import blake3

from unbroken.errors import CorruptObject, ObjectMissing
from unbroken.store.local import LocalStore
from unbroken.store.system import System

LEAST = 4096
"""Characters of base64 below which data stays where it is."""
_STALE = 3600.0
"""Seconds after which a file that was never finished is removed."""

_PLAIN = re.compile(
    rb'"data:(?P<mime>[A-Za-z0-9!#$&^_.+/;=-]{0,127});base64,(?P<data>[A-Za-z0-9+/]{%d,}={0,2})(?=\\*")'
    rb'|"unbroken-media(?P<aside>~*):' % (LEAST - 2)
)
_LIFTED = re.compile(
    rb'"unbroken-media:(?P<digest>[0-9a-f]{64});(?P<mime>[A-Za-z0-9!#$&^_.+/;=-]{0,127})(?=\\*")'
    rb'|"unbroken-media(?P<aside>~*):'
)
_NAME = b'"unbroken-media'
"""Without it a body names nothing, and has nothing that is set aside."""
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


class Media:
    """The blobs in a folder. Safe for several threads and processes."""

    def __init__(self, directory: Path, *, system: System | None = None) -> None:
        self._store = LocalStore(directory, system=system)
        self._known: set[str] = set()
        """Digests of which this process knows that they are there, whole and durable."""
        self._swept = False

    def put(self, data: bytes) -> str:
        """Keep `data`, durably; return its digest.

        Raises:
            StoreError: it could not be written.
        """
        digest = blake3(data).hexdigest()
        if digest in self._known:
            return digest
        if not self._swept:
            self._swept = True
            self._store.sweep(older_than=_STALE)
        # Also if it is there: who put it may have died before its name was durable, and the disk may have spoilt it.
        # Then it is put in its place whole.
        if not self._store.put_if_absent(digest, data) and not self._is_whole(digest):
            self._store.put(digest, data)
        self._known.add(digest)
        return digest

    def get(self, digest: str) -> bytes:
        """Return the blob.

        Raises:
            ObjectMissing: there is none of this digest.
            CorruptObject: its bytes are others than were put.
        """
        if not _DIGEST.match(digest):  # it comes from outside, and must not become a path
            raise ObjectMissing(f"There is no media {digest!r}: that is no digest.", hint=_HINT, key=digest)
        try:
            data = self._store.get(digest)
        except ObjectMissing as error:
            raise ObjectMissing(
                f"There is no media {digest} in {self._store.local_path()}.", hint=_HINT, key=digest
            ) from error
        if blake3(data).hexdigest() != digest:
            self._known.discard(digest)
            raise CorruptObject(
                f"The media {self._store.local_path(digest)} is damaged.",
                hint=_HINT,
                key=digest,
                digest=digest,
            )
        return data

    def lift(self, body: bytes) -> bytes:
        """Return `body` with the names of its large `data:` strings in their place; the data is durable then.

        Raises:
            StoreError: data could not be written.
        """
        return _PLAIN.sub(self._lifted, body)

    def lower(self, body: bytes) -> bytes:
        """Return what was lifted.

        Raises:
            ObjectMissing, CorruptObject: a named blob is missing or damaged, or `body` does not come from `lift`.
        """
        return _LIFTED.sub(self._lowered, body)

    async def lift_aside(self, body: bytes) -> bytes:
        """Like `lift`; what has to be written is written in a thread."""
        if b";base64," not in body and _NAME not in body:
            return body
        return await asyncio.to_thread(self.lift, body)

    async def lower_aside(self, body: bytes) -> bytes:
        """Like `lower`; what has to be read is read in a thread."""
        return await asyncio.to_thread(self.lower, body) if _NAME in body else body

    @staticmethod
    def named(body: bytes) -> set[str]:
        """Return the digests that a lifted body names."""
        if _NAME not in body:
            return set()
        found = (match["digest"] for match in _LIFTED.finditer(body))
        return {digest.decode() for digest in found if digest is not None}

    def _is_whole(self, digest: str) -> bool:
        try:
            self.get(digest)
        except (ObjectMissing, CorruptObject):
            return False
        return True

    def _lifted(self, match: re.Match[bytes]) -> bytes:
        aside = match["aside"]
        if aside is not None:
            return b'"unbroken-media' + aside + b"~:"
        text = match["data"]
        try:
            data = base64.b64decode(text, validate=True)
        except binascii.Error:
            return match[0]
        if base64.b64encode(data) != text:
            return match[0]  # more than one text stands for the same data, and this is not the usual one
        return b'"unbroken-media:' + self.put(data).encode() + b";" + match["mime"]

    def _lowered(self, match: re.Match[bytes]) -> bytes:
        aside = match["aside"]
        if aside is None:
            data = self.get(match["digest"].decode())
            return b'"data:' + match["mime"] + b";base64," + base64.b64encode(data)
        if not aside:
            raise CorruptObject(
                "A body holds a name of media that no media has.",
                hint="Lower only what was lifted; this body is damaged, or was not.",
            )
        return b'"unbroken-media' + aside[:-1] + b":"


_HINT = "It is also in the checkpoint, if there is one: restore from it; else begin this rollout anew."
