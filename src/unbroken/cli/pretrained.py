"""Writes the weights of a checkpoint to a directory that `from_pretrained` reads.

What was tracked as `Pretrained` is written as its parts had written it, byte for byte. Of any other module
there are the weights alone, under the names of its `state_dict`: its configuration is in no checkpoint.
Several models have a directory each, named by their places.

The directory is written beside its place and renamed, so that an interrupted export leaves no half one.
"""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unbroken.adapters.pretrained.names import CODEC, PREFIX
from unbroken.errors import ConfigError, CorruptObject
from unbroken.report.arrays import Arrays, NamedArray
from unbroken.state.nodes import Bytes, Coded, Dict, Tuple, Value
from unbroken.state.places import visit
from unbroken.state.snapshot import Component, Snapshot
from unbroken.store.exchange import take_place

if TYPE_CHECKING:
    from unbroken.adapters.pretrained.layout import Layout

NAME = "hf-dir"
"""What `--to` calls this layout."""
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclass(frozen=True, slots=True)
class WrittenModels:
    """How many tensors and bytes were written, and the lines of Python that load each model."""

    entries: int
    bytes: int
    load: tuple[str, ...]


def shard_bytes(text: str) -> int:
    """Return the size that `5GB` or `500MB` means.

    Raises:
        ConfigError: it means none.
    """
    found = re.fullmatch(r"(\d+) ?([KMGT]?B)", text.strip().upper())
    if found is None or not int(found[1]):
        raise ConfigError(f"{text!r} is no size of a file.", hint="Write it like 5GB or 500MB.")
    return int(found[1]) * _UNITS[found[2]]


def write_models(
    snapshot: Snapshot, component: str, directory: Path, *, shard: int, force: bool
) -> WrittenModels:
    """Write the models of a component.

    Raises:
        ConfigError: it has none, `directory` exists, or safetensors or PyTorch is not installed.
        CorruptObject: the document contradicts itself.
    """
    if directory.exists() and not force:
        raise ConfigError(f"{directory} exists.", hint="Add --force to replace it.")
    try:
        from unbroken.adapters.pretrained.layout import of_state_dict, write
        from unbroken.capture.torch_file import tensor_of
    except ImportError as error:
        raise ConfigError(f"{NAME} needs PyTorch, which is not installed.", hint="Export to .npz.") from error

    arrays = Arrays(snapshot)
    stored = dict(_stored(snapshot.components[component]))
    models: dict[str, Layout] = {
        place: _layout(fields, arrays, snapshot.components[component]) for place, fields in stored.items()
    }
    if not models:
        models = {
            place: of_state_dict(
                {name: tensor_of(a.dtype, a.values) for name, a in tensors.items()}, shard_bytes=shard
            )
            for place, tensors in arrays.modules(component).items()
        }
    if not models:
        raise ConfigError(f"{component} holds no model.", hint="Export it to .npz or .json.")

    beside = directory.with_name(f".{directory.name[:40]}-{secrets.token_hex(4)}")
    names = [""] if len(models) == 1 else [place.replace("/", ".") for place in models]
    try:
        for name, model in zip(names, models.values(), strict=True):
            (beside / name).mkdir(parents=True)
            write(model, beside / name)
        take_place(beside, directory)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return WrittenModels(
        sum(len(model.tensors) for model in models.values()),
        sum(model.nbytes for model in models.values()),
        tuple(
            line
            for name, model in zip(names, models.values(), strict=True)
            for line in _load(directory / name, model)
        ),
    )


def _load(directory: Path, model: Layout) -> list[str]:
    if "config.json" in model.files:
        return [f"AutoModel.from_pretrained({str(directory)!r})"]
    # Only what is tracked as `Pretrained` brings its configuration along.
    return [f"safetensors.torch.load_file({str(directory / name)!r})" for name in model.weights]


def _stored(component: Component) -> Iterator[tuple[str, dict[str, Value]]]:
    for root, value in component.roots.items():
        for place, node in visit(root, value):
            if isinstance(node, Coded) and node.k == CODEC and isinstance(node.v, Dict):
                yield place, node.v.v or {}


def _layout(fields: dict[str, Value], arrays: Arrays, component: Component) -> Layout:
    from unbroken.adapters.pretrained.layout import Layout, WeightFile
    from unbroken.capture.torch_file import tensor_of

    def tensor(name: str) -> NamedArray:
        found = arrays.array(fields.get(PREFIX + name), component)
        if found is None:
            raise CorruptObject(f"The checkpoint names a tensor {name[:80]!r} that it does not hold.")
        return found

    layout = Layout()
    for name, file in _entries(fields.get("layout")).items():
        parts = _entries(file)
        tensors, metadata = parts.get("tensors"), _entries(parts.get("metadata"))
        names = [str(item) for item in tensors.v] if isinstance(tensors, Tuple) else []
        layout.weights[name] = WeightFile(tuple(names), {k: str(v) for k, v in metadata.items()})
        layout.tensors.update({n: tensor_of(a.dtype, a.values) for n in names for a in [tensor(n)]})
    for name, value in _entries(fields.get("files")).items():
        node, home = arrays.resolve(value, component)
        if not isinstance(node, Bytes):
            raise CorruptObject(f"The file {name[:80]!r} of the checkpoint holds no bytes.")
        layout.files[name] = home.content(node.b).tobytes() if node.b >= 0 else node.v
    return layout


def _entries(node: Value) -> dict[str, Value]:
    return (node.v or {}) if isinstance(node, Dict) else {}
