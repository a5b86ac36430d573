"""The directory of an export: written whole or not at all, and read with every digest checked.

Weights lie in files of safetensors, columns of replay buffers in files of numpy (`.npy`), which any program
maps into memory. Nothing in it is a pickle, and nothing of it is executed.

Not promised: durability. An export is made from a checkpoint, and can be made again.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from tokenize import TokenError
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from unbroken.errors import ConfigError, CorruptObject, NotCapturable, installing
from unbroken.format import neutral
from unbroken.format.neutral import File, Neutral
from unbroken.store.exchange import take_place

_PIECE = 1 << 24
"""Bytes that are read, or rows of a column copied, at a time."""
_SAFETENSORS = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_BITS = {"bfloat16": "uint16"}
"""What numpy lacks, and the type in which its bits are given."""
_NO_ARRAY = (
    ValueError, TypeError, KeyError, SyntaxError, TokenError, OverflowError, RecursionError, MemoryError, EOFError, OSError,
)  # fmt: skip
"""What numpy raises for a file that is no array of its own: its header is read as Python's words are."""


@dataclass(frozen=True, slots=True)
class Bits:
    """A tensor: the name of its type, and its elements, or their bits where numpy lacks the type."""

    dtype: str
    values: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Turned:
    """Rows of a ring from the oldest on: `count` of them from row `first`, around the end of `array` if need be."""

    array: NDArray[Any]
    first: int
    count: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.count, *self.array.shape[1:])

    def pieces(self) -> Iterator[NDArray[Any]]:
        """Yield the rows in order, some at a time."""
        capacity = len(self.array)
        step = max(1, _PIECE // max(1, self.array[:1].nbytes))
        done = 0
        while done < self.count:
            at = (self.first + done) % capacity
            some = min(step, self.count - done, capacity - at)
            yield self.array[at : at + some]
            done += some


@dataclass(slots=True)
class Contents:
    """What an export is made of. `document` names the files; their digests come when they are written."""

    document: Neutral
    weights: dict[str, Mapping[str, Bits]] = field(default_factory=dict[str, Mapping[str, Bits]])
    columns: dict[str, Turned] = field(default_factory=dict[str, Turned])


def write(contents: Contents, directory: Path, *, force: bool = False) -> Neutral:
    """Write an export beside its place and rename it, and return its document.

    An older export is there until the new one stands in its place (`store/exchange.py`). What a killed export leaves is
    a folder `.NAME-…` beside it.

    Raises:
        ConfigError: `directory` exists and is not to be replaced, or is no export; its parent does not exist; or
            safetensors is not installed.
        NotCapturable: a tensor has a type for which exports have no name.
        OSError: the disk is full, or may not be written to.
    """
    check_place(directory, force=force)
    # A name of full length has no room for more letters.
    beside = directory.with_name(f".{directory.name[:40]}-{secrets.token_hex(4)}")
    try:
        beside.mkdir(mode=0o700)
        for name, tensors in contents.weights.items():
            _write_weights(_made(beside / name), tensors)
        for name, column in contents.columns.items():
            _write_column(_made(beside / name), column)
        files = {name: _file(beside / name) for name in (*contents.weights, *contents.columns)}
        document = msgspec.structs.replace(contents.document, files=files)
        (beside / neutral.NAME).write_bytes(neutral.encode(document))
        neutral.decode((beside / neutral.NAME).read_bytes())  # what is given away can be read
        take_place(beside, directory)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return document


def check_place(directory: Path, *, force: bool) -> None:
    """Say in time whether an export can be written here.

    Raises:
        ConfigError: it cannot.
    """
    if not directory.absolute().parent.is_dir():
        raise ConfigError(f"The folder {directory.parent} does not exist.", hint="Make it first.")
    if not directory.exists() and not directory.is_symlink():
        return
    if not force:
        raise ConfigError(f"{directory} exists.", hint="Add --force to replace it.")
    if directory.is_symlink() or not directory.is_dir():
        raise ConfigError(f"{directory} is no directory.", hint="Name another place.")
    if any(directory.iterdir()) and not (directory / neutral.NAME).is_file():
        # Whoever mistypes a path with --force must not lose what is there.
        raise ConfigError(f"{directory} holds something else than an export.", hint="Name another place.")


def document_of(directory: Path) -> Neutral:
    """Read the document of an export.

    Raises:
        ConfigError: there is none.
        CorruptObject: it is damaged, or a file that it names has another size.
        UnsupportedFormat: a newer Unbroken wrote it.
    """
    path = directory / neutral.NAME
    if not path.is_file():
        raise ConfigError(
            f"{directory} holds no {neutral.NAME}.",
            hint="Name a directory that `unbroken export RUN --to neutral DIR` has written.",
        )
    document = neutral.decode(path.read_bytes(), where=str(path))
    for name, file in document.files.items():
        if not (directory / name).is_file():
            raise CorruptObject(f"{directory / name} is missing.", hint="Export the run again.", key=name)
        if (size := (directory / name).stat().st_size) != file.bytes:
            raise _damaged(directory / name, f"it has {size} bytes, not {file.bytes}")
    return document


def read_weights(directory: Path, name: str, file: File) -> dict[str, Bits]:
    """Read a file of weights.

    Raises:
        ConfigError: safetensors is not installed.
        CorruptObject: the file is not what was written.
    """
    data = (directory / name).read_bytes()
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise _damaged(directory / name, "its digest does not fit")
    package = _package("safetensors")
    try:
        found: list[tuple[str, dict[str, Any]]] = package.deserialize(data)
    except package.SafetensorError as error:
        raise _damaged(directory / name, str(error)) from error
    return {tensor: _bits(directory / name, told) for tensor, told in found}


def _bits(path: Path, told: Mapping[str, Any]) -> Bits:
    dtype = _SAFETENSORS.get(told["dtype"])
    if dtype is None:
        raise _damaged(path, f"it holds the type {told['dtype']}, which exports do not have")
    values = np.frombuffer(told["data"], _BITS.get(dtype, dtype))
    return Bits(dtype, values.reshape(told["shape"]))


def read_column(directory: Path, column: neutral.Column, file: File, *, verify: bool = True) -> NDArray[Any]:
    """Map a column into memory, read-only.

    Raises:
        CorruptObject: the file is not what was written; without `verify` only if its header says so.
    """
    path = directory / column.file
    if verify and _digest(path) != file.sha256:
        raise _damaged(path, "its digest does not fit")
    try:
        # An empty array cannot be mapped.
        array: NDArray[Any] = np.load(
            path, mmap_mode="r" if math_size(column.shape) else None, allow_pickle=False
        )
    except _NO_ARRAY as error:
        raise _damaged(path, f"{error}") from error
    if list(array.shape) != column.shape or array.dtype.name != column.dtype:
        raise _damaged(path, f"it holds {array.dtype.name}{list(array.shape)}")
    return array


def math_size(shape: list[int]) -> int:
    """Return how many elements an array of this shape has."""
    size = 1
    for length in shape:
        size *= length
    return size


def _write_weights(path: Path, tensors: Mapping[str, Bits]) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype not in _SAFETENSORS.values():
            raise NotCapturable(
                f"{name} is of the type {tensor.dtype}, for which exports have no name.",
                hint="Export it as .pt.",
            )
    told = {"format": "pt"}
    if not any(tensor.dtype in _BITS for tensor in tensors.values()):
        arrays = {
            name: np.ascontiguousarray(tensor.values).reshape(tensor.values.shape)
            for name, tensor in tensors.items()
        }
        _package("safetensors.numpy").save_file(arrays, path, metadata=told)
        return
    try:
        from unbroken.capture.torch_file import tensor_of
    except ImportError as error:
        raise _missing("PyTorch") from error
    made = {name: tensor_of(tensor.dtype, tensor.values) for name, tensor in tensors.items()}
    _package("safetensors.torch").save_file(made, path, metadata=told)


def _write_column(path: Path, column: Turned) -> None:
    dtype = column.array.dtype
    with open(path, "xb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": column.shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.writelines(np.ascontiguousarray(piece).data for piece in column.pieces())


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _file(path: Path) -> File:
    return File(bytes=path.stat().st_size, sha256=_digest(path))


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            found.update(piece)
    return found.hexdigest()


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise _missing(name.partition(".")[0]) from error


def _missing(package: str) -> ConfigError:
    return ConfigError(
        f"Exports for other programs need {package}, which is not installed.",
        hint=installing(package),
    )


def _damaged(path: Path, why: str) -> CorruptObject:
    return CorruptObject(f"{path} is damaged: {why}.", hint="Export the run again.", key=path.name)
