"""Writes directories of wrapped servers, so that the official commands start servers with a log, without an edit by hand.

`ng_run` prefers `./<kind>/<directory>` over what is installed. For each server of a configuration one is written: a file of
a few lines that wraps the class, the requirements of the original, and `.venv`, a link to the environment that runs
this, with which `+skip_venv_if_present=true` needs neither uv nor the network.

Start `ng_run` in the directory that was written. Servers of one's own elsewhere are imported from where they are.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unbroken.adapters.nemo_gym.launch.configuration import (
    PATHS,
    Source,
    instances,
    needs_nemo_gym,
    plain,
    settings_of,
)
from unbroken.adapters.nemo_gym.launch.locate import Located, install_root, locate
from unbroken.adapters.nemo_gym.launch.resolve import resolve
from unbroken.errors import ConfigError

_APP = '''"""{class_name} with a log and checkpoints. Written by `unbroken gym wrap`."""

import sys

sys.path[:0] = {paths!r}

from {module} import {class_name}
from unbroken.nemo_gym import checkpointed

if __name__ == "__main__":
    checkpointed({class_name}{options}).run_webserver()
'''


@dataclass(frozen=True, slots=True)
class Wrapped:
    """One directory that was written."""

    directory: Path
    module: str
    class_name: str


def wrap(config: Source, *, out: Path | str, project: Path | str | None = None) -> list[Wrapped]:
    """Write a directory for each server that a configuration names, into `out`.

    Runs in the environment that has NeMo Gym, and that the servers are to run in.

    Raises:
        ConfigError: a server cannot be found, or `out` has a directory of that name that was not written here.
    """
    target = Path(out).expanduser().resolve()
    home = Path(project or Path.cwd()).expanduser().resolve()
    installed = install_root()
    if target == home and not isinstance(config, dict):
        raise ConfigError(
            f"{target} is where the servers are looked for.",
            hint="Give another directory for the wrapped ones.",
        )
    read = plain(config)
    if needs_nemo_gym(read):
        read = resolve(read, python=sys.executable, project=home, environment=os.environ)
    written: dict[Path, Wrapped] = {}
    for instance in instances(read):
        place = target / instance.kind / instance.directory
        own = settings_of(read, instance.name).get("unbroken")
        if place in written or own is False:
            continue
        wanted = str(own.get("class") or "") if isinstance(own, dict) else ""
        located = locate(
            instance.kind,
            instance.directory,
            instance.entrypoint,
            project=home,
            installed=installed,
            wanted=wanted,
        )
        if not located.class_name:
            raise ConfigError(
                f"{located.directory / instance.entrypoint} does not say which class serves.",
                hint="Name it: `class: Class` under `unbroken` in its settings.",
            )
        options = (
            {key: value for key, value in own.items() if key != "class"} if isinstance(own, dict) else {}
        )
        _write(place, located, instance.entrypoint, home=home, installed=installed, options=options)
        written[place] = Wrapped(place, located.module, located.class_name)
    _copy_configurations(read.get(PATHS) or (), target=target, home=home)
    return list(written.values())


def _write(
    place: Path, located: Located, entrypoint: str, *, home: Path, installed: Path, options: Mapping[str, Any]
) -> None:
    app = place / entrypoint
    if app.exists() and "Written by `unbroken gym wrap`" not in app.read_text("utf-8", "replace"):
        raise ConfigError(
            f"{app} was not written here.", hint="Give an empty directory, or remove that file."
        )
    place.mkdir(parents=True, exist_ok=True)
    paths = [str(located.directory)]
    if installed not in located.directory.parents:
        paths.insert(0, str(home))
    words = "".join(f", {name}={value!r}" for name, value in options.items())
    app.write_text(
        _APP.format(class_name=located.class_name, module=located.module, paths=paths, options=words)
    )
    requirements = located.directory / "requirements.txt"
    if requirements.exists():
        shutil.copyfile(requirements, place / "requirements.txt")
    else:  # by this file NeMo Gym knows that a directory is a server's
        (place / "requirements.txt").touch()
    link = place / ".venv"
    if link.is_symlink():
        link.unlink()
    if not link.exists():
        link.symlink_to(sys.prefix, target_is_directory=True)


def _copy_configurations(paths: Sequence[str], *, target: Path, home: Path) -> None:
    """Copy the user's own configuration files that are named relative to where he stands."""
    for path in paths:
        source, copy = home / path, Path(os.path.normpath(target / path))
        if Path(path).is_absolute() or not source.is_file() or copy.exists():
            continue
        if target not in copy.parents:
            sys.stderr.write(
                f"unbroken: {path} lies outside of where you stand and is not copied; name it to ng_run by its full path,"
                f" {source.resolve()}\n"
            )
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
