"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from unbroken.format.digest import digest_of
from unbroken.format.document import BlobRef, chunks_of, decode, encode
from unbroken.format.manifest import DocumentFormat
from unbroken.state.snapshot import Component, Snapshot


def through_documents(snapshot: Snapshot, form: DocumentFormat) -> Snapshot:
    """Return what a reader of the snapshot's documents gets, its bytes in memory of their own."""
    read: dict[str, Component] = {}
    for name, component in snapshot.components.items():
        contents = [component.content(i) for i in range(len(component.blobs))]
        table = [BlobRef(c.nbytes, [digest_of(chunk) for chunk in chunks_of(c.data)]) for c in contents]
        document = decode(encode(component, table, form), form)
        read[name] = Component(name, document.roots, [*map(np.copy, contents)], document.tensors)
    return Snapshot(components=read)


@pytest.fixture(params=["json", "msgpack"])
def travel(request: pytest.FixtureRequest) -> Callable[[Snapshot], Snapshot]:
    """Send a snapshot through documents of each form."""
    form: DocumentFormat = request.param
    return lambda snapshot: through_documents(snapshot, form)
