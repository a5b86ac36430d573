"""A directory as `save_pretrained` writes it: weights in safetensors files, everything else as it is.

Which tensor stands in which file is part of it, so that what was read can be written again byte for byte.
An index over several weight files (`model.safetensors.index.json`) is a JSON file like any other.

Not promised: weights in pickled files (`pytorch_model.bin`). They are kept as files, and never opened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from unbroken.errors import ConfigError, CorruptObject, installing

if TYPE_CHECKING:
    import torch

SUFFIX = ".safetensors"
WEIGHTS = f"model{SUFFIX}"
SHARD_BYTES = 5_000_000_000
"""So many bytes of weights stand in one file, at most, unless a single tensor is larger."""


@dataclass(frozen=True, slots=True)
class WeightFile:
    """The tensors of one file, by name, and the few words that its header holds beside them."""

    tensors: tuple[str, ...]
    metadata: Mapping[str, str]


@dataclass(slots=True)
class Layout:
    """What a directory holds. `files` are all that are no weights, by their relative names."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict[str, Any])
    weights: dict[str, WeightFile] = field(default_factory=dict[str, WeightFile])
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors.values()) + sum(map(len, self.files.values()))


def safetensors() -> tuple[Any, Any]:
    """Return the modules that read and write weight files.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return import_module("safetensors"), import_module("safetensors.torch")
    except ImportError as error:
        raise ConfigError(
            "This layout needs the package safetensors, which is not installed.",
            hint=installing("safetensors"),
        ) from error


def read(directory: Path) -> Layout:
    """Return what `directory` holds. Tensors still lie in its files, and stay readable when these are removed.

    Raises:
        ConfigError: two of its files hold a tensor of the same name, or something in it could not be written again:
            a link, what is no plain file, a name that is none everywhere.
    """
    found = Layout()
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        _check_writable_again(path, name)
        if path.is_dir():
            continue
        if path.suffix != SUFFIX:
            found.files[name] = path.read_bytes()
            continue
        with safetensors()[0].safe_open(path, framework="pt") as file:
            tensors = {tensor: file.get_tensor(tensor) for tensor in file.keys()}  # noqa: SIM118
            metadata: Mapping[str, str] = file.metadata() or {}
        if twice := tensors.keys() & found.tensors.keys():
            raise ConfigError(
                f"{name} holds {min(twice)!r} a second time.", hint="Save each part on its own."
            )
        found.tensors.update(tensors)
        found.weights[name] = WeightFile(tuple(tensors), dict(metadata))
    return found


def _check_writable_again(path: Path, name: str) -> None:
    shown = os.fsencode(name).decode(errors="backslashreplace")
    if path.is_symlink():
        raise ConfigError(
            f"save_pretrained makes {shown} a link, and what it leads to is no part of what it writes.",
            hint="Let it write a copy of that file.",
        )
    if not path.is_dir() and not path.is_file():
        raise ConfigError(
            f"save_pretrained makes {shown}, which is no plain file.", hint="Let it write files."
        )
    if "\\" in name or shown != name:
        raise ConfigError(
            f"save_pretrained writes a file of the name {shown}, which is none on every system.",
            hint="Give it one without a backslash, in characters.",
        )


def write(layout: Layout, directory: Path) -> None:
    """Write what `read` has read into an empty directory.

    Raises:
        CorruptObject: a name leads out of the directory; it came from a checkpoint.
    """
    for name, content in layout.files.items():
        path = _inside(directory, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for name, file in layout.weights.items():
        path = _inside(directory, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        chosen = {tensor: layout.tensors[tensor].contiguous() for tensor in file.tensors}
        safetensors()[1].save_file(chosen, path, metadata=dict(file.metadata) or None)


def _inside(directory: Path, name: str) -> Path:
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts or not parts.parts or "\\" in name:
        raise CorruptObject(f"The file name {name[:80]!r} leads out of the directory.")
    return directory / parts


def of_state_dict(tensors: Mapping[str, torch.Tensor], *, shard_bytes: int = SHARD_BYTES) -> Layout:
    """Lay a `state_dict` out as `save_pretrained` does: one file, or numbered ones and an index over them."""
    groups = _grouped(((name, tensor.nbytes) for name, tensor in tensors.items()), shard_bytes)
    layout = Layout(dict(tensors))
    names = [WEIGHTS] if len(groups) == 1 else [_numbered(i + 1, len(groups)) for i in range(len(groups))]
    layout.weights = {
        name: WeightFile(tuple(group), {"format": "pt"}) for name, group in zip(names, groups, strict=True)
    }
    if len(groups) > 1:
        index = {
            "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
            "weight_map": {tensor: name for name, file in layout.weights.items() for tensor in file.tensors},
        }
        layout.files[f"{WEIGHTS}.index.json"] = (json.dumps(index, indent=2, sort_keys=True) + "\n").encode()
    return layout


def _numbered(i: int, count: int) -> str:
    return f"model-{i:05d}-of-{count:05d}{SUFFIX}"


def _grouped(sizes: Iterable[tuple[str, int]], limit: int) -> list[list[str]]:
    """Fill one file after the other, in the given order. A tensor that is too large has one for itself."""
    groups: list[list[str]] = []
    room = 0
    for name, nbytes in sizes:
        if not groups or nbytes > room:
            groups.append([])
            room = limit
        groups[-1].append(name)
        room -= nbytes
    return groups or [[]]
