"""Out of one framework, into another: what `unbroken export RUN --to neutral DIR` writes, read back.

`load` gives plain arrays, `load_policy` a policy that acts, and `into_sb3` fills a model of Stable-Baselines3.
docs/neutral.md describes the directory for programs that know nothing of Unbroken.
"""

from __future__ import annotations

from unbroken.adapters.neutral.acting import Policy, load_network, load_policy, load_value
from unbroken.adapters.neutral.into_sb3 import Carried, into_sb3
from unbroken.adapters.neutral.reading import Export, Normalizer, Replay, load

__all__ = [
    "Carried",
    "Export",
    "Normalizer",
    "Policy",
    "Replay",
    "into_sb3",
    "load",
    "load_network",
    "load_policy",
    "load_value",
]
