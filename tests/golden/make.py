"""Writes the golden run of the present format version: `python tests/golden/make.py [directory]`.

Every byte is determined: clock, process, tokens, key and contents are given. As long as the format
version is 0 the run is made anew in the commit that changes the format; a released version is frozen.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import sys
from pathlib import Path

import numpy as np

from unbroken.format import layout
from unbroken.format.compression import BlobCodec, Compression
from unbroken.format.meta import Meta
from unbroken.format.records import HistoryRecord
from unbroken.format.wire import FORMAT_VERSION
from unbroken.repo import names
from unbroken.repo.process import Process
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.state.nodes import (
    Array,
    Bytes,
    Class,
    Coded,
    Deque,
    Dict,
    External,
    Float,
    Function,
    Int,
    Link,
    List,
    Method,
    Object,
    ObjectArray,
    Opaque,
    Packed,
    Partial,
    Ref,
    Scope,
    Set,
    Tuple,
    Value,
    View,
)
from unbroken.state.snapshot import Component, Note, Promise, Rows, Snapshot
from unbroken.types import Fidelity, Step

JOB = "golden"
KEY = b"the key of the golden run: public"
OWNER = Process(pid=4242, start="987654", boot_id="00000000-0000-0000-0000-000000000000", host="golden")
TIME = 1_700_000_000.0
HERE = Path(__file__).parent
RING_CHUNK = 250


def state(step: int) -> Snapshot:
    """Return a state in which every word of the format occurs."""
    weights = (np.arange(600, dtype="<f4") * step).view(np.uint8)
    frames = np.zeros(5000, np.uint8)
    frames[:: 7 + step] = 255
    rewards = (np.arange(40_000, dtype="<u2") + step).view(np.uint8)
    words: dict[str, Value] = {
        "none": None,
        "flag": True,
        "int": -(2**63),
        "float": 0.1,
        "text": 'λ "quoted" \n',
        "nan": Float(v="nan"),
        "big": Int(v=hex(2**127 + step)),
        "bytes": Bytes(v=b"\x00\xff", mutable=True, id=10),
        "list": List(v=[1, Ref(to=10)], id=11),
        "floats": Packed(t="f", n=2, data=np.array([1.5, -0.0], "<f8").tobytes(), id=12),
        "tuple": Tuple(v=[1, "x"], c="collections:Pair"),
        "set": Set(v=[1, 2], frozen=True),
        "deque": Deque(v=[3], m=100),
        "dict": Dict(kv=[(1, "one"), (Tuple(v=[1, 2]), "pair")]),
        "small": Array(d="<i8", s=(2,), data=np.array([1, 2], "<i8").tobytes()),
        "objects": ObjectArray(s=(1,), v=[Dict(v={"info": 1})]),
        "generator": Coded(k="numpy.generator", v=Dict(v={"state": Int(v="0x1")}), c="numpy.random:PCG64"),
        "function": Function(q="script:schedule", h="0123456789abcdef", cl={"initial": 0.001}),
        "method": Method(n="reset", of=Link(to="model/policy", in_="policy_weights")),
        "partial": Partial(f=Class(q="script:make"), a=Tuple(v=[]), k=Dict(v={})),
        "external": External(c="threading:Lock"),
        "worker": Scope(
            p="0", roots={"env": Object(c="script:Env", a={"x": Array(d="|u1", s=(8,), b=0)})}, blobs=[0]
        ),
    }
    return Snapshot(
        components={
            "policy_weights": Component(
                name="policy_weights",
                roots={
                    "model/policy": Object(
                        c="script:Policy",
                        a={
                            "weight": Array(d="<f4", s=(20, 30), b=0, id=1),
                            "row": View(of=Ref(to=1), off=0, d="<f4", s=(30,), st=(4,)),
                        },
                        id=2,
                    )
                },
                blobs=[weights],
                tensors={"model/policy": {"weight": "model/policy/weight"}},
            ),
            "replay_buffer": Component(
                name="replay_buffer",
                roots={
                    "model/replay_buffer": Dict(
                        v={
                            "frames": Array(d="|u1", s=(100, 50), b=0, rows=100, id=3),
                            "rewards": Array(d="<u2", s=(40_000,), b=1, id=4),
                        }
                    )
                },
                # A ring: its chunks hold whole rows, and are named by a list of two levels.
                blobs=[
                    Rows(frames.nbytes, RING_CHUNK, ((0, frames),)),
                    Rows(rewards.nbytes, RING_CHUNK, ((0, rewards),)),
                ],
            ),
            "model": Component(
                name="model",
                roots={"model": Object(c="script:Model", a=words)},
                blobs=[np.arange(8, dtype=np.uint8)],
            ),
        },
        notes=[Note("external", "model/external", "kept from the freshly built object")],
        promises={
            "policy_weights": Promise(Fidelity.EXACT),
            "replay_buffer": Promise(Fidelity.APPROXIMATE, "an example of a reason"),
        },
        counters={"episodes": step, "learning_rate": 0.001},
    )


def skeleton() -> Snapshot:
    root = Object(c="script:Model", a={"learning_rate": 0.001, "weight": Array(d="<f4", s=(20, 30))})
    return Snapshot(components={"model": Component(name="model", roots={"model": root})})


def with_a_pickle(step: int) -> Snapshot:
    snapshot = state(step)
    snapshot.components["callback"] = Component(
        name="callback", roots={"callback": Opaque(c="script:Callback", data=b"cos\nsystem\n(S'false'\ntR.")}
    )
    return snapshot


def make(root: Path) -> None:
    """Write the run below `root`: two writers, three commits that are left of four, a save that never ended."""
    numbers = itertools.count(0x0123456789AB)

    def token() -> str:
        return f"{next(numbers):012x}"

    repository = Repository.open(root, JOB, create=True)
    birth = ""
    for life in range(2):
        compression = Compression(BlobCodec.ZSTD if life == 0 else BlobCodec.GZIP)
        fmt = "json" if life == 0 else "msgpack"
        with repository.writer(
            clock=lambda: TIME,
            token=token,
            owner=OWNER,
            signing_key=lambda: KEY,
            compression=compression,
            document_format="json" if fmt == "json" else "msgpack",
        ) as writer:
            if life == 0:
                birth = writer.write_birth(skeleton())
                writer.write(state(1), Meta(step=Step(0), position="start", reason="start", birth=birth))
                writer.append_history(HistoryRecord(time=TIME, tier="fresh"))
                writer.record_workers([dataclasses.replace(OWNER, pid=4243)])
            for step in (100, 200) if life == 0 else (300,):
                snapshot = with_a_pickle(step) if step == 300 else state(step)
                writer.mark_pending(Step(step), "schedule")
                writer.write(
                    snapshot,
                    Meta(step=Step(step), reason="schedule", metrics={"reward": float("nan")}, birth=birth),
                )
            writer.retain(plan_retention(repository.commits(), keep_last=2, keep_first=True))
            writer.mark_pending(Step(400), "SIGTERM")
    (root / JOB / names.LOCK).unlink()  # no object of the format
    (root / JOB / layout.BALLAST).unlink()  # noise


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / f"v{FORMAT_VERSION}"
    shutil.rmtree(target, ignore_errors=True)
    make(target)
    print(target)
