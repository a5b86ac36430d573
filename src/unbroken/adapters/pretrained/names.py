"""What a `Pretrained` is called in a document: for those who read one without the framework that wrote it."""

from __future__ import annotations

CODEC = "pretrained"
PREFIX = "weights."
"""Before a tensor's name, in the payload: no tensor can take the place of another entry."""
