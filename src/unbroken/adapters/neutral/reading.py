"""Reads an export of any framework into plain arrays. Needs numpy, and safetensors for what is no replay buffer.

Invariant: what is given out has been compared with the digests in `neutral.json`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unbroken.adapters.neutral.directory import Bits, document_of, read_column, read_weights
from unbroken.errors import ConfigError, CorruptObject
from unbroken.format.neutral import NAME, Network, Neutral, Number
from unbroken.format.neutral import Normalizer as NormalizerRecord
from unbroken.format.neutral import Replay as ReplayRecord


def value_of(number: Number) -> float:
    """Return a number that stands in the document."""
    return float(number)


@dataclass(frozen=True, slots=True)
class Normalizer:
    """Running statistics of observations or rewards, as the training had them."""

    record: NormalizerRecord
    """What the document says of it: role, epsilon, clip, …"""
    mean: NDArray[Any]
    """Of the normalized thing's shape, float64."""
    var: NDArray[Any]
    """Of the normalized thing's shape, float64; in the square of its unit."""

    @property
    def count(self) -> float:
        """How many values the statistics are of."""
        return value_of(self.record.count)

    def apply(self, values: ArrayLike) -> NDArray[np.float32]:
        """Return observations (…, *shape) or rewards (…,) normalized as the training does it, in float32.

        Rewards are divided by the deviation of the returns, and not centred.
        """
        given = np.asarray(values)
        if not self.record.active:
            return given.astype(np.float32)
        centred = given if self.record.role == "reward" else given - self.mean
        scaled: NDArray[Any] = centred / np.sqrt(self.var + (self.record.epsilon or 0.0))
        if self.record.clip is not None:
            clip = value_of(self.record.clip)
            scaled = np.clip(scaled, -clip, clip)
        return scaled.astype(np.float32)


@dataclass(frozen=True, slots=True, repr=False)
class Replay:
    """A replay buffer. Its arrays are mapped from the files, and read-only.

    `buffer["obs"]` is a column by its role, or by the name that the program gives it. Row i is older than row i + 1,
    unless `record.order` says otherwise.
    """

    record: ReplayRecord
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])
    """By the name in the program; one of a dict of arrays by `name.key`."""

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {self[name].dtype}{list(self[name].shape)}" for name in self)
        return f"<Replay {self.record.name}: {len(self)} rows, {self.record.order}; {columns}>"

    def __len__(self) -> int:
        """How many rows there are; with several environments each row holds one step of all of them."""
        return self.record.rows

    def __getitem__(self, name: str) -> NDArray[Any]:
        for column in self.record.columns:
            full = column_name(column.name, column.key)
            if name in (full, column_name(column.role, column.key) if column.role else full):
                return self.columns[full]
        raise ConfigError(
            f"The buffer has no column {name!r}.", hint=f"It has: {', '.join(sorted(set(self)))}."
        )

    def __iter__(self) -> Iterator[str]:
        """Yield the name of each column: its role where it has one."""
        for column in self.record.columns:
            yield column_name(column.role or column.name, column.key)


def column_name(name: str, key: str) -> str:
    """Return how a column of a dict of arrays is called.

    >>> column_name("obs", ""), column_name("obs", "goal")
    ('obs', 'obs.goal')
    """
    return f"{name}.{key}" if key else name


@dataclass(frozen=True, repr=False)
class Export:
    """What `load` returns. Weights and buffers are read when they are asked for, and kept."""

    directory: Path
    document: Neutral
    verify: bool = True

    def __repr__(self) -> str:
        held = self.document
        parts = {
            "networks": [one.name for one in held.networks],
            "normalizers": [one.name for one in held.normalizers],
            "replay": [one.name for one in held.replay],
        }
        told = "; ".join(f"{part}: {', '.join(names)}" for part, names in parts.items() if names)
        return f"<Export of {held.source.run} at step {self.step}, in {self.directory}; {told}>"

    @property
    def step(self) -> int:
        """The global step of the checkpoint, in environment steps, or in what the run counts."""
        return self.document.source.step

    @cached_property
    def normalizers(self) -> dict[str, Normalizer]:
        """By name; `observations` and `rewards` are those of the training's environments.

        Raises:
            CorruptObject: their file is not what was written.
        """
        read = {name: self._file(name) for name in {n.file for n in self.document.normalizers}}
        found: dict[str, Normalizer] = {}
        for record in self.document.normalizers:
            tensors = read[record.file]
            for name in (record.mean, record.var):
                if name not in tensors or [*tensors[name].values.shape] != record.shape:
                    raise _contradicts(record.file, name)
            found[record.name] = Normalizer(record, tensors[record.mean].values, tensors[record.var].values)
        return found

    @cached_property
    def replay(self) -> dict[str, Replay]:
        """By name.

        Raises:
            CorruptObject: a file of a column is not what was written.
        """
        return {
            record.name: Replay(
                record,
                {
                    column_name(column.name, column.key): read_column(
                        self.directory, column, self.document.files[column.file], verify=self.verify
                    )
                    for column in record.columns
                },
            )
            for record in self.document.replay
        }

    def network(self, name: str = "") -> Network:
        """Return what the document says of a network; without a name of the only one, or of the one that acts.

        Raises:
            ConfigError: there is none of this name, or it is not clear which is meant.
        """
        networks = {network.name: network for network in self.document.networks}
        if not name and self.document.act is not None:
            name = self.document.act.network
        if not name and len(networks) == 1:
            (name,) = networks
        if name not in networks:
            raise ConfigError(
                f"The export has no network {name!r}."
                if name
                else "The export has several networks, or none.",
                hint=f"There are: {', '.join(networks) or 'none'}.",
            )
        return networks[name]

    def weights(self, name: str = "") -> dict[str, NDArray[Any]]:
        """Return a network's tensors by their `state_dict` names, as arrays of their shapes and types.

        Of `bfloat16`, which numpy lacks, the bits are given, as uint16; `state_dict` knows it.

        Raises:
            ConfigError: there is no such network, or safetensors is not installed.
            CorruptObject: the file is not what was written.
        """
        return {tensor: bits.values for tensor, bits in self.bits(name).items()}

    def bits(self, name: str = "") -> dict[str, Bits]:
        """Return a network's tensors, each with the name of its type. Raises as `weights` does."""
        network = self.network(name)
        found = self._file(network.file)
        for tensor, told in network.tensors.items():
            if tensor not in found or (found[tensor].dtype, [*found[tensor].values.shape]) != (
                told.dtype,
                told.shape,
            ):
                raise _contradicts(network.file, tensor)
        return {tensor: found[tensor] for tensor in network.tensors}

    def state_dict(self, name: str = "") -> dict[str, Any]:
        """Return a network's tensors for torch's `load_state_dict`; copies, on the CPU.

        Raises:
            ConfigError: there is no such network, or safetensors or PyTorch is not installed.
            CorruptObject: the file is not what was written.
        """
        try:
            from unbroken.capture.torch_file import tensor_of
        except ImportError as error:
            raise ConfigError(
                "A state_dict needs PyTorch, which is not installed.", hint="Use `weights`."
            ) from error
        return {tensor: tensor_of(bits.dtype, bits.values) for tensor, bits in self.bits(name).items()}

    def _file(self, name: str) -> dict[str, Bits]:
        return read_weights(self.directory, name, self.document.files[name])


def _contradicts(file: str, tensor: str) -> CorruptObject:
    return CorruptObject(
        f"{file} does not hold {tensor[:80]!r} as {NAME} says.", hint="Export the run again.", key=file
    )


def load(directory: str | os.PathLike[str], *, verify: bool = True) -> Export:
    """Read an export that `unbroken export RUN --to neutral DIR` has written.

    `verify=False` leaves out the digests of replay buffers, which takes as long as reading them.

    Raises:
        ConfigError: the directory holds no export.
        CorruptObject: its document is damaged, or a file of it is missing or has another size.
        UnsupportedFormat: a newer Unbroken wrote it.
    """
    path = Path(directory)
    return Export(path, document_of(path), verify)
