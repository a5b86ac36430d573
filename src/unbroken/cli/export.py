"""`unbroken export`: one component as a file that other programs read."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer

from unbroken.cli.guard import EXIT_OK, DebugOption, JsonOption
from unbroken.cli.output import show
from unbroken.cli.target import run_of
from unbroken.errors import ConfigError
from unbroken.report.arrays import Arrays, NamedArray
from unbroken.report.plain import plain
from unbroken.report.quantity import counted, size
from unbroken.state.snapshot import Snapshot

TARGETS = "target_weights"


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written where."""

    checkpoint: str
    component: str
    file: str
    format: str
    entries: int
    bytes: int


def export(
    run: Annotated[
        str, typer.Argument(help="A run (its newest checkpoint), RUN@STEP, or a step's directory.")
    ],
    to: Annotated[str, typer.Option(help="The file: .pt, .npz or .json decides what is written.")],
    component: Annotated[str, typer.Option(help="The component.")] = "policy_weights",
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """Write one component as .pt (a state_dict), .npz (numpy arrays) or .json (plain values)."""
    path = Path(to)
    write = writer_for(to)
    if path.exists() and not force:
        raise ConfigError(f"{path} exists.", hint="Add --force to replace it.")
    target = run_of(run)
    commit = target.checkpoint()
    names = {entry.component for entry in target.repository.manifest(commit).documents.values()}
    if component not in names:
        raise ConfigError(
            f"There is no component {component!r}.", hint=f"There are: {', '.join(sorted(names))}."
        )
    # A policy's target networks are part of its state_dict, and a component of their own.
    wanted = {component, TARGETS} & names if component == "policy_weights" else {component}
    entries = replace_file(path, write, target.repository.load(commit, sorted(wanted)), component)
    checkpoint = str(target.path / commit.directory)
    result = Exported(checkpoint, component, str(path), path.suffix[1:], entries, path.stat().st_size)
    show(
        f"{component} of {checkpoint} -> {path} ({counted(entries, NOUNS[path.suffix])}, {size(result.bytes)})",
        data=result,
        json=json,
    )
    return EXIT_OK


Writer = Callable[[Path, Snapshot, str], int]


def writer_for(to: str) -> Writer:
    """Return what writes the format that a file's name asks for.

    Raises:
        ConfigError: none does.
    """
    if to == "sb3-zip" or to.endswith(".zip"):
        raise ConfigError(
            "Export to SB3's own .zip is not there yet.", hint="Use .pt and policy.load_state_dict."
        )
    found = WRITERS.get(Path(to).suffix)
    if found is None:
        raise ConfigError(f"{to} has no known format.", hint=f"The name ends in {', '.join(WRITERS)}.")
    return found


def replace_file(path: Path, write: Writer, snapshot: Snapshot, component: str) -> int:
    """Write beside `path` and rename, so that an interrupted export leaves no half file."""
    beside = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    try:
        entries = write(beside, snapshot, component)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    return entries


def write_pt(path: Path, snapshot: Snapshot, component: str) -> int:
    """Write modules as `state_dict`s; a component without modules as its tensors by place."""
    arrays = Arrays(snapshot)
    modules = arrays.modules(component)
    if not modules:
        tensors = {name: a for name, a in arrays.everything(component) if not a.dtype.startswith(("<", "|"))}
        if not tensors:
            raise ConfigError(f"{component} holds no tensors.", hint="Export it to .npz or .json.")
        modules = {"": tensors}
    try:
        from unbroken.capture.torch_file import write_state_dicts
    except ImportError as error:
        raise ConfigError(".pt needs PyTorch, which is not installed.", hint="Export to .npz.") from error
    write_state_dicts(
        path, {p: {n: (a.dtype, a.values) for n, a in tensors.items()} for p, tensors in modules.items()}
    )
    return sum(len(tensors) for tensors in modules.values())


def write_npz(path: Path, snapshot: Snapshot, component: str) -> int:
    """Write arrays by their `state_dict` names, or by place in a component without modules."""
    arrays = Arrays(snapshot)
    modules = arrays.modules(component)
    found: dict[str, NamedArray] = {}
    for place, tensors in modules.items():
        prefix = "" if len(modules) == 1 else f"{place.replace('/', '.')}."
        found.update({prefix + name: array for name, array in tensors.items()})
    if not modules:
        found.update(arrays.everything(component))
    if not found:
        raise ConfigError(f"{component} holds no arrays.", hint="Export it to .json.")
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **{name: array.numeric for name, array in found.items()})
    return len(found)


def write_json(path: Path, snapshot: Snapshot, component: str) -> int:
    """Write the tree as plain values."""
    tree = plain(snapshot, component)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(tree), indent=2))
    return len(snapshot.components[component].roots)


NOUNS = {".pt": "tensor", ".npz": "array", ".json": "root"}
WRITERS: dict[str, Writer] = {".pt": write_pt, ".npz": write_npz, ".json": write_json}
