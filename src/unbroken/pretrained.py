"""Models with `save_pretrained` (Hugging Face): `run.track(policy=Pretrained(model, tokenizer))`."""

from __future__ import annotations

from unbroken.adapters.pretrained.tracked import Pretrained

__all__ = ["Pretrained"]
