"""A small language model and its tokenizer that save themselves as Hugging Face's do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn


class Tiny(nn.Module):
    """Tied embeddings, two types of weights, a buffer. `shards`: in how many files its weights stand."""

    def __init__(
        self, *, words: int = 50, width: int = 16, shards: int = 1, temperature: float = 1.0
    ) -> None:
        super().__init__()
        self.config = {"architectures": ["Tiny"], "hidden_size": width, "vocab_size": words}
        self.generation = {"temperature": temperature}
        self.shards = shards
        self.embed = nn.Embedding(words, width)
        self.norm = nn.BatchNorm1d(width)
        self.mixer = nn.Linear(width, width, dtype=torch.bfloat16)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.norm(self.embed(words).mean(1))
        logits: torch.Tensor = self.head(self.mixer(hidden.bfloat16()).float())
        return logits

    def save_pretrained(self, save_directory: str) -> None:
        folder = Path(save_directory)
        for name, content in (("config", self.config), ("generation_config", self.generation)):
            (folder / f"{name}.json").write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
        kept = {name: tensor for name, tensor in self.state_dict().items() if name != "head.weight"}
        if self.shards == 1:
            save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
            return
        names = list(kept)
        where: dict[str, str] = {}
        for i in range(self.shards):
            file = f"model-{i + 1:05d}-of-{self.shards:05d}.safetensors"
            part = {name: kept[name] for name in names[i :: self.shards]}
            save_file(part, folder / file, metadata={"format": "pt"})
            where.update(dict.fromkeys(part, file))
        index: dict[str, Any] = {
            "metadata": {"total_size": sum(tensor.nbytes for tensor in kept.values())},
            "weight_map": where,
        }
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        (folder / "model.safetensors.index.json").write_text(text)


class Tokenizer:
    """Its files, one of them in a folder below."""

    def __init__(self, words: int = 50) -> None:
        self.words = words

    def save_pretrained(self, save_directory: str) -> None:
        folder = Path(save_directory)
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": self.words}}))
        (folder / "chat").mkdir()
        (folder / "chat" / "template.jinja").write_text("{{ messages }}\n")
