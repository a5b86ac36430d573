"""What is known of single servers that their classes do not say.

By the name of a server's module. An explicit `capability` stands above this.
"""

from __future__ import annotations

from typing import Final

from unbroken.adapters.nemo_gym.control import Capability

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


def fact_of(module: str) -> tuple[Capability, str] | None:
    """Return what is known of the server in a module, and why."""
    for part in reversed(module.split(".")):
        if part in FACTS:
            return FACTS[part]
    return None
