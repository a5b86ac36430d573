"""What holds for every test of NeMo Gym: a key of its own, and nothing that reports over the network."""

from __future__ import annotations

import os
import signal

# A shell starts its background jobs with SIGINT ignored, and whatever they start ignores it too.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["UNBROKEN_KEY"] = "11" * 32
os.environ["WANDB_MODE"] = "offline"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("UNBROKEN_GYM_DIR", None)
os.environ.pop("UNBROKEN_GYM_START", None)
