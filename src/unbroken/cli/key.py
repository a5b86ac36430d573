"""`unbroken key`: the key that signs checkpoints with pickled parts, and who has signed those of a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from unbroken.cli.guard import EXIT_NO, EXIT_OK, DebugOption, JsonOption, guarded
from unbroken.cli.output import show
from unbroken.errors import ConfigError
from unbroken.inspection.target import run_of
from unbroken.repo import keys
from unbroken.repo.keys import HeldKey
from unbroken.repo.vouching import Vouching, vouching
from unbroken.report.quantity import number
from unbroken.report.table import Cell, Column, Table

app = typer.Typer(
    help="The key that signs checkpoints with pickled parts.",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@dataclass(frozen=True, slots=True)
class ShownKey:
    """What may be shown of a key: never itself."""

    name: str
    where: str
    retired: bool

    @classmethod
    def of(cls, held: HeldKey) -> ShownKey:
        """Return what may be shown of a key."""
        return cls(held.name, held.where, held.retired)


@dataclass(frozen=True, slots=True)
class ShownKeys:
    """The keys that this user holds, the one in use first."""

    keys: tuple[ShownKey, ...]


@dataclass(frozen=True, slots=True)
class SignedCheckpoint:
    """A checkpoint and who vouches for it. `key` is the name in its signature."""

    step: int
    directory: str
    pickled: int
    key: str
    verdict: Vouching


@dataclass(frozen=True, slots=True)
class Signatures:
    """The checkpoints of a run, newest first."""

    run: str
    checkpoints: tuple[SignedCheckpoint, ...]


@app.callback()
def key(
    context: typer.Context,
    export: Annotated[
        bool, typer.Option("--export", help="Print UNBROKEN_KEY=… for another machine. It is a secret.")
    ] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show the name of the key in use and where it comes from; the key itself only with --export."""
    if context.invoked_subcommand is None:
        guarded(_shown)(export=export, json=json, debug=debug)


def _shown(*, export: bool, json: bool, debug: bool) -> int:
    held = list(keys.held_keys())
    if export:
        if not held or held[0].retired:
            raise ConfigError("There is no key yet.", hint="Make one with: unbroken key make")
        sys.stdout.write(f"{keys.VARIABLE}={_text(held[0])}\n")
        return EXIT_OK
    none = [] if held else ["There is no key yet. The first checkpoint with pickled parts makes one."]
    show(_table(held), *none, data=ShownKeys(tuple(map(ShownKey.of, held))), json=json)
    return EXIT_OK


def make(json: JsonOption = False, debug: DebugOption = False) -> int:
    """Make the key in its file, before the first checkpoint needs one."""
    made = keys.make()
    show(f"Made the key {made.name} in {made.where}.", data=ShownKey.of(made), json=json)
    return EXIT_OK


def rotate(json: JsonOption = False, debug: DebugOption = False) -> int:
    """Put a new key in the place of the present one, which signs nothing any more.

    Checkpoints that it has signed still load, until `unbroken key forget NAME`.
    """
    new, old = keys.rotate()
    told = f"The key is now {new.name}, in {new.where}. Retired: {old.name}; what it has signed still loads."
    show(told, data=ShownKeys((ShownKey.of(new), ShownKey.of(old))), json=json)
    return EXIT_OK


def forget(
    name: Annotated[str, typer.Argument(help="The name of a retired key, as `unbroken key` shows it.")],
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """Delete a retired key: the pickled parts that it has signed do not load here any more."""
    path = keys.forget(name)
    show(f"Deleted {path}.", data={"deleted": str(path)}, json=json)
    return EXIT_OK


def check(
    run: Annotated[str, typer.Argument(help="A run, RUN@STEP, or a step's directory.")],
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """Say which key has signed each checkpoint of a run. Exit status 1 if one has pickled parts that no key of
    this user vouches for."""
    target = run_of(run)
    held = list(keys.held_keys())
    commits = [target.commit] if target.commit else target.repository.commits()
    found: list[SignedCheckpoint] = []
    for commit in commits:
        manifest = target.repository.manifest(commit)
        name = manifest.signature.key if manifest.signature is not None else ""
        verdict = vouching(manifest, held)
        found.append(SignedCheckpoint(commit.step, commit.directory, len(manifest.opaque), name, verdict))
    table = Table(
        (Column("step", numeric=True), Column("pickled", numeric=True), Column("key"), Column("result"))
    )
    for one in found:
        bad = one.pickled and not one.verdict.is_ours
        result = Cell(one.verdict.value, "bad" if bad else "good")
        table.add(number(one.step), number(one.pickled), one.key or "-", result)
    show(table, data=Signatures(target.where, tuple(found)), json=json)
    return EXIT_NO if any(one.pickled and not one.verdict.is_ours for one in found) else EXIT_OK


def _table(held: Sequence[HeldKey]) -> Table:
    table = Table((Column("key"), Column("use"), Column("from")))
    for one in held:
        table.add(one.name, "retired" if one.retired else "in use", one.where)
    return table


def _text(held: HeldKey) -> str:
    """Return what the variable must be for this key."""
    return held.key.hex() if len(held.key) == keys.KEY_BYTES else os.fsdecode(held.key)


app.command("make")(guarded(make))
app.command("rotate")(guarded(rotate))
app.command("forget")(guarded(forget))
app.command("check")(guarded(check))
