"""A small training in a bucket: `python -m tests.store.object_script ROOT STEPS`. Prints what it started from and the end."""

from __future__ import annotations

import sys
import zlib

from tests.engine.training import Training, source_of
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.schedule import Every
from unbroken.engine.settings import Settings

root, steps = sys.argv[1], int(sys.argv[2])
training = Training(width=64)
engine = CheckpointEngine(source_of(training), Settings(root=root, job="run", every=Every(steps=10)))
report = engine.resume()
print(report.step, report.fault, sep="\t", flush=True)
for step in range(report.step, steps):
    if engine.step(step):
        engine.wait()  # else how many saves there are depends on how fast they are
    training.step()
engine.save(steps, reason="end of training", position="end")
engine.close()
print(zlib.crc32(repr(training.digest()).encode()))
