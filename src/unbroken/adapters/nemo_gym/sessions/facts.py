"""What is known of single servers that their classes do not say.

By the name of a server's module or folder. An explicit `capability` stands above this.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from unbroken.adapters.nemo_gym.control import Capability
from unbroken.adapters.nemo_gym.sessions.clocks import modules_of

FACTS: Final[dict[str, tuple[Capability, str]]] = {
    "genrm_compare": ("drain_only", "answers of a group wait for each other"),
    "critpt": ("drain_only", "answers are sent to a judge in batches"),
    "vlm_eval_kit": ("drain_only", "answers wait for a coordinator"),
    "proof_judge": ("drain_only", "answers of a group wait for each other"),
    "speed_bench": ("drain_only", "measurements span all sessions"),
    "swebench": ("restart_only", "each session has a sandbox elsewhere"),
    "deepswe": ("restart_only", "each session has a sandbox elsewhere"),
    "litmus_agent": ("restart_only", "each session has a sandbox elsewhere"),
    "aviary": ("restart_only", "environments are kept under an id of their own, not under the session's"),
    "toolsandbox": (
        "restart_only",
        "environments are kept under an id of their own, not under the session's",
    ),
}


def fact_of(cls: type) -> tuple[Capability, str] | None:
    """Return what is known of a server, and why. One that runs as a script goes by the folder it is in."""
    for module in modules_of(cls):
        folder = Path(getattr(module, "__file__", None) or "").parent.name
        for part in (*reversed(module.__name__.split(".")), folder):
            if part in FACTS:
                return FACTS[part]
    return None
