"""A save comes out of a letter as it was put in."""

from __future__ import annotations

import os

import numpy as np
import pytest

from unbroken.engine.companion.letter import Draft, Work, read_letter
from unbroken.engine.keeping import Keeping
from unbroken.engine.saving import Order
from unbroken.format.meta import Meta
from unbroken.repo.fencing import Claim
from unbroken.repo.pen import Pen
from unbroken.repo.process import current
from unbroken.repo.retention import Best
from unbroken.state.nodes import Array, Dict
from unbroken.state.shared import SharedMemory
from unbroken.state.snapshot import Base, Blob, Bytes, Component, Rows, Snapshot
from unbroken.state.staging import Staging
from unbroken.types import Digest, Epoch, Sequence, Step, WriteId

NAME = Digest("b3:" + "0" * 64)


def work(*, sick: frozenset[str] | None = None) -> Work:
    pen = Pen(
        claim=Claim(Epoch(3), WriteId("0" * 12 + "e3")),
        owner=current(),
        first=Sequence(9),
        document_format="msgpack",
        births={NAME},
        suspect={"b3:1"},
    )
    keeping = Keeping(
        keep_last=2, best=Best("loss", "min"), keep_first=True, damaged=frozenset({Sequence(4)})
    )
    meta = Meta(step=Step(12), metrics={"loss": 0.5}, counters={"rows": np.int64(7), "nan": float("nan")})
    order = Order(meta=meta, keeping=keeping, sick=sick, sick_from_birth=frozenset({"a/\udcff"}))
    root = os.fsdecode(b"/runs/\xff")
    return Work(root=root, job="run", pen=pen, order=order, inspector="unbroken.capture.weights:not_finite")


def ring(base: Base | None) -> Rows:
    return Rows(20_000, 4096, ((4096, noise(4096, 1)), (16_384, noise(3616, 2))), base)


def noise(size: int, seed: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


@pytest.mark.parametrize("live", [frozenset({0, 1, 2}), frozenset({1}), frozenset[int]()])
def test_staged_or_not_everything_comes_out(live: frozenset[int]) -> None:
    blobs: list[Blob] = [noise(9000, 3), ring(Base(NAME, 20_000, 4096)), np.empty(0, np.uint8)]
    roots = {"m": Dict(v={"w\udcff": Array(d="|u1", s=(9000,), b=0, id=1)})}
    part = Component(
        "part", roots=dict(roots), blobs=list(blobs), tensors={"m": {"w": "m/w"}}, live=set(live)
    )
    memory = SharedMemory()
    staging = Staging(lambda: 1 << 20, memory)
    snapshot = Snapshot({"part": part, "empty": Component("empty")})
    assert staging.take(snapshot)
    letter = Draft(snapshot, memory).finish(work())
    # The sender is gone; what it has sent is not.
    received = [os.dup(descriptor) for descriptor in letter.descriptors]
    letter.close()
    staging.release()
    memory.close()
    told, found = read_letter(received)
    for descriptor in received:
        os.close(descriptor)
    assert list(found.components) == ["part", "empty"]
    back = found.components["part"]
    assert (back.roots, back.tensors) == (roots, {"m": {"w": "m/w"}})
    assert same(back.blobs[0], blobs[0])
    assert same(back.blobs[2], blobs[2])
    rows, given = back.blobs[1], blobs[1]
    assert isinstance(rows, Rows)
    assert isinstance(given, Rows)
    assert (rows.size, rows.chunk, rows.base) == (given.size, given.chunk, given.base)
    assert [start for start, _ in rows.ranges] == [4096, 16_384]
    assert all(same(a, b) for (_, a), (_, b) in zip(rows.ranges, given.ranges, strict=True))
    assert told.order.meta.counters["rows"] == 7


def same(one: object, other: object) -> bool:
    return np.array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.parametrize("sick", [None, frozenset[str](), frozenset({"w"})])
def test_the_order_comes_out(sick: frozenset[str] | None) -> None:
    given = work(sick=sick)
    letter = Draft(Snapshot(), SharedMemory()).finish(given)
    told, _ = read_letter(letter.descriptors)
    letter.close()
    assert os.fsencode(told.root) == b"/runs/\xff"
    assert (told.root, told.job, told.inspector) == (given.root, given.job, given.inspector)
    assert told.pen == given.pen
    assert told.order.keeping == given.order.keeping
    assert (told.order.sick, told.order.sick_from_birth) == (sick, frozenset({"a/\udcff"}))
