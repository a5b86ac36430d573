"""`unbroken export`: one component as a file that other programs read."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated

import msgspec
import numpy as np
import typer

from unbroken.adapters.rllib.names import reached
from unbroken.cli import neutral, pretrained, sb3_zip
from unbroken.cli.guard import EXIT_OK, DebugOption, JsonOption
from unbroken.cli.output import show
from unbroken.cli.placing import check_file, replace_file
from unbroken.errors import ConfigError
from unbroken.format.records import Commit
from unbroken.inspection.roots import Roots
from unbroken.inspection.target import run_of
from unbroken.repo.repository import Repository
from unbroken.repo.roots import is_url
from unbroken.report.arrays import PARTS, Arrays, NamedArray, outermost
from unbroken.report.plain import plain
from unbroken.report.quantity import counted, size
from unbroken.report.spelling import spelled
from unbroken.state.nodes import Object
from unbroken.state.parts import rank_name, split_name, view
from unbroken.state.snapshot import Snapshot

POLICY, TARGETS = "policy_weights", "target_weights"
SHARDING = "sharding"
"""The component that only a run of `unbroken.dcp` has."""
PLACES = {pretrained.NAME: "DIR", neutral.NAME: "DIR", sb3_zip.NAME: "FILE.zip"}
"""The layouts that are named themselves, and what is to be named beside them."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written where."""

    checkpoint: str
    component: str
    file: str
    format: str
    entries: int
    bytes: int
    load: tuple[str, ...]
    """How to load the file, in Python."""


@dataclass(frozen=True, slots=True)
class Written:
    """How many things a file holds, and the lines of Python that load it; `{path}` stands for its name."""

    entries: int
    load: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A component of a checkpoint, with what belongs to it."""

    commit: Commit
    component: str
    """Its full name."""
    snapshot: Snapshot
    roots: Roots

    @property
    def own(self) -> str:
        """The component's name in the snapshot."""
        return split_name(self.component)[0]


def export(
    run: Annotated[
        str, typer.Argument(help="A run (its newest checkpoint), RUN@STEP, or a step's directory.")
    ],
    place: Annotated[
        str,
        typer.Argument(help="With --to hf-dir or neutral: the directory to write. With sb3-zip: the file."),
    ] = "",
    *,
    to: Annotated[
        str,
        typer.Option(
            help="The file: .pt, .npz, .json or .zip decides what is written. Or: hf-dir, neutral, sb3-zip."
        ),
    ],
    component: Annotated[str, typer.Option(help="The component.")] = POLICY,
    force: Annotated[bool, typer.Option("--force", help="Replace what exists.")] = False,
    shard_size: Annotated[
        str, typer.Option(help="With --to hf-dir: the most that one file of weights holds.")
    ] = "5GB",
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """Write one component as .pt (a state_dict), .npz (numpy arrays) or .json (plain values).

    Without --component it is the weights: of a Stable-Baselines3 model what `model.policy` loads; of several
    ranks with weights of their own those of rank 0 (others: `--component policy_weights@rank1`). With
    `--to hf-dir DIR` it is a directory for `from_pretrained`: safetensors, and what was saved beside them. With
    `--to neutral DIR` it is the policy, its statistics and the replay buffer for programs of any framework. With
    `--to sb3-zip FILE`, or a name that ends in .zip, it is what `model.save()` of Stable-Baselines3 writes.
    """
    named = to in PLACES
    if named != bool(place):
        raise ConfigError(
            f"--to {to} writes {'a directory' if PLACES.get(to) == 'DIR' else 'a file'}.",
            hint=f"Write: unbroken export {quote(run)} --to {to} {PLACES[to]}"
            if named
            else f"Leave out {place}.",
        )
    zipped = to == sb3_zip.NAME or to.endswith(sb3_zip.SUFFIX)
    if to == neutral.NAME or zipped:
        if component != POLICY:
            whole = "all that SB3 keeps of a model" if zipped else "what other programs can use"
            raise ConfigError(
                f"--to {to} takes from all components {whole}.",
                hint=f"Leave out --component {component}.",
            )
        exporting = sb3_zip.export_zip if zipped else neutral.export_neutral
        exported, lines = exporting(run_of(run), Path(place or to), force=force)
        show(*lines, data=exported, json=json)
        return EXIT_OK
    path = Path(place or to)
    shard = pretrained.shard_bytes(shard_size)
    write = None if named else writer_for(to)
    if write is None:
        if path.exists() and not force:
            raise ConfigError(f"{path} exists.", hint="Add --force to replace it.")
    else:
        check_file(path, force=force)
    target = run_of(run)
    loaded = target.read(lambda commit: _loaded(target.repository, commit, component, target.where))
    component, checkpoint = loaded.component, target.place(loaded.commit)
    if write is None:
        written = pretrained.write_models(loaded.snapshot, loaded.own, path, shard=shard, force=force)
        result = _exported(checkpoint, component, path, to, written, written.bytes)
    else:
        file = _named(replace_file(path, lambda beside: write(beside, loaded)), path)
        result = _exported(checkpoint, component, path, path.suffix[1:], file, path.stat().st_size)
    count = counted(result.entries, NOUNS.get(path.suffix, "tensor"))
    show(
        f"{component} of {checkpoint} -> {path} ({count}, {size(result.bytes)})",
        *(f"To load: {line}" for line in result.load),
        data=result,
        json=json,
    )
    return EXIT_OK


def _loaded(repository: Repository, commit: Commit, component: str, where: str) -> Loaded:
    """Return a component and what belongs to it.

    Raises:
        ConfigError: the checkpoint has none of this name.
    """
    names = {entry.component for entry in repository.manifest(commit).documents.values()}
    component = _labelled(component, names)
    if component not in names:
        known = f"There are: {', '.join(sorted(names))}."
        if SHARDING in names:
            root, _, job = (where if is_url(where) else os.path.abspath(where)).rstrip("/").rpartition("/")
            reader = f"unbroken.dcp.StorageReader({root!r}, job={job!r}, step={commit.step})"
            known += (
                " A model in shards is put together by torch.distributed.checkpoint, in one process: load its"
                f" state_dict with dcp.load(state, storage_reader={reader}), then torch.save it."
            )
        raise ConfigError(f"There is no component {component!r}.", hint=known)
    own, rank = split_name(component)
    roots = Roots(repository, commit, rank or 0)
    wanted = {component}
    if own == POLICY:
        # A policy's target networks are part of its state_dict, and a component of their own.
        wanted |= {TARGETS, rank_name(TARGETS, rank or 0)} & names
    if own not in PARTS:
        # And so may be the module around it, of which each of several ranks has one for itself.
        tops = {top for top, inside in map(outermost, roots.of(component)) if inside}
        wanted |= {roots.home(top) for top in tops} - {""}
    # Several ranks number their objects each for itself: as one of them sees it, each number is there once.
    snapshot = view(repository.load(commit, sorted(wanted)), rank or 0)
    return Loaded(commit, component, snapshot, roots)


def _labelled(component: str, names: Collection[str]) -> str:
    """Return the name under which a checkpoint holds a component. Where each of several ranks has weights of
    its own, the first one's are meant."""
    mine = rank_name(component, 0)
    return mine if component == POLICY and component not in names and mine in names else component


def _exported(
    checkpoint: str,
    component: str,
    path: Path,
    form: str,
    written: Written | pretrained.WrittenModels,
    nbytes: int,
) -> Exported:
    return Exported(checkpoint, component, str(path), form, written.entries, nbytes, written.load)


Writer = Callable[[Path, Loaded], Written]


def writer_for(to: str) -> Writer:
    """Return what writes the format that a file's name asks for.

    Raises:
        ConfigError: none does.
    """
    found = WRITERS.get(Path(to).suffix)
    if found is None:
        known = ", ".join([*WRITERS, sb3_zip.SUFFIX])
        raise ConfigError(f"{to} has no known format.", hint=f"The name ends in {known}.")
    return found


def _named(written: Written, path: Path) -> Written:
    return Written(written.entries, tuple(line.replace("{path}", repr(str(path))) for line in written.load))


def write_pt(path: Path, loaded: Loaded) -> Written:
    """Write modules as `state_dict`s; a component without modules as its tensors by place."""
    arrays, component = Arrays(loaded.snapshot), loaded.own
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
    read = "torch.load({path}, weights_only=True)"
    several = len(modules) > 1
    lines = [
        _load_line(place, f"{read}[{place!r}]" if several else read, loaded, len(tensors) if several else 0)
        for place, tensors in modules.items()
        if place
    ]
    return Written(sum(map(len, modules.values())), tuple(lines or [read]))


def _load_line(place: str, entry: str, loaded: Loaded, several: int) -> str:
    """Return the line that loads `entry` into the module at a place. One of several modules, of `several`
    tensors, is told apart by a comment."""
    find = loaded.roots.find
    expression, what = spelled(place, find), ""
    module = find(place) if several else None
    if isinstance(module, Object):
        what = f"{module.c.rpartition(':')[2]}, {counted(several, 'tensor')}"
    root, _, inside = place.partition("/")
    owner = find(root) if inside else None
    known = reached(root, owner.c) if isinstance(owner, Object) else None
    if known is not None:
        expression = known[0] + expression.removeprefix(root)
        if several and not outermost(place)[1]:  # a part of the module is told by its own name
            what = known[1]
    return f"{expression}.load_state_dict({entry}){what and f'  # {what}'}"


def write_npz(path: Path, loaded: Loaded) -> Written:
    """Write arrays by their `state_dict` names, or by place in a component without modules."""
    arrays, component = Arrays(loaded.snapshot), loaded.own
    modules = arrays.modules(component)
    found: dict[str, NamedArray] = {}
    for place, tensors in modules.items():
        prefix = "" if len(modules) == 1 else f"{place.replace('/', '.')}."
        found.update({prefix + name: array for name, array in tensors.items()})
    if not modules:
        found.update(arrays.everything(component))
    if not found:
        raise ConfigError(f"{component} holds no arrays.", hint="Export it to .json.")
    # Not with np.savez: it takes the names as its own arguments, and one of them is `file`.
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in found.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array.numeric, allow_pickle=False)
    return Written(len(found), (f"numpy.load({{path}})[{next(iter(found))!r}]",))


def write_json(path: Path, loaded: Loaded) -> Written:
    """Write the tree as plain values."""
    snapshot, component = loaded.snapshot, loaded.own
    tree = plain(snapshot, component)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(tree), indent=2))
    return Written(len(snapshot.components[component].roots), ())


NOUNS = {".pt": "tensor", ".npz": "array", ".json": "root"}
WRITERS: dict[str, Writer] = {".pt": write_pt, ".npz": write_npz, ".json": write_json}
