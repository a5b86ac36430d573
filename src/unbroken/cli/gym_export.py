"""`unbroken gym export`: the layered document as a file, its images beside it, and the check of such a file."""

from __future__ import annotations

import mimetypes
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

from unbroken.adapters.nemo_gym import protocol
from unbroken.adapters.nemo_gym.trainer.payload import Payload
from unbroken.adapters.nemo_gym.view.bodies import MEDIA
from unbroken.adapters.nemo_gym.view.sessions import moment
from unbroken.errors import ConfigError, CorruptObject

_MODE = 0o600
"""Prompts and tool results are nobody else's business."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What a file was found to be. `problem` is empty where its digest holds."""

    file: str
    version: str
    sessions: int
    problem: str = ""


def text_of(state: protocol.GymState) -> bytes:
    """Return the document in JSON with its digest, read back once: what is given away can be read."""
    text = protocol.write(state, timestamp=moment(datetime.now(timezone.utc).timestamp()))
    protocol.read(text)
    return text


def check_file(path: Path) -> Checked:
    """Read a document, and say whether it is what it was when it was written.

    Raises:
        ConfigError: there is no such file.
        UnsupportedFormat: it is no such document, or one of another major version.
    """
    if not path.is_file():
        raise ConfigError(f"{path} is no file.", hint="Give a file that `unbroken gym export --out` wrote.")
    try:
        state = protocol.read(path.read_bytes())
    except CorruptObject as error:
        return Checked(str(path), "", 0, str(error))
    problem = (
        "" if state.integrity is not None else "It carries no digest, so nothing says whether it was changed."
    )
    return Checked(str(path), state.version, len(state.environment.session_states), problem)


def write_file(path: Path, data: bytes, *, force: bool = False) -> None:
    """Write a file in one step, readable by its owner.

    Raises:
        ConfigError: it exists, and `force` is False; or its folder does not.
    """
    if path.exists() and not force:
        raise ConfigError(f"{path} exists.", hint="Add --force to replace it.")
    if not path.parent.is_dir():
        raise ConfigError(f"The folder {path.parent} does not exist.", hint="Make it first.")
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE), "wb") as file:
            file.write(data)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_media(directory: Path, payload: Payload, state: protocol.GymState) -> list[str]:
    """Write every image that the document names as `<digest>.<ending>`, and return these names.

    Raises:
        CorruptObject: the checkpoint does not have one of them.
    """
    blobs = {digest: data for server in payload.servers.values() for digest, data in server.media.items()}
    named = dict(named_media(protocol.plain(state)))
    missing = sorted(named.keys() - blobs.keys())
    if missing:
        raise CorruptObject(
            f"The checkpoint lacks {len(missing)} of the images that it names, the first of them {missing[0]}.",
            hint="Export without --media, or take an older checkpoint.",
        )
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    written: list[str] = []
    for digest, kind in sorted(named.items()):
        name = f"{digest}{mimetypes.guess_extension(kind.partition(';')[0]) or ''}"
        write_file(directory / name, blobs[digest], force=True)  # named by what is in it
        written.append(name)
    return written


def named_media(value: Any) -> Iterator[tuple[str, str]]:
    """Yield digest and type of every image that plain values name."""
    stack: list[Any] = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            held = cast("dict[str, Any]", item)
            if isinstance(held.get(MEDIA), str):
                yield held[MEDIA], str(held.get("type", ""))
            else:
                stack.extend(held.values())
        elif isinstance(item, list):
            stack.extend(cast("list[object]", item))
