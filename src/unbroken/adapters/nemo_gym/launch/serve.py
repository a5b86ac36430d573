"""Runs one server of NeMo Gym with its log: `python -m unbroken.adapters.nemo_gym.launch.serve INSTANCE`.

Takes the place of `python app.py` in the server's directory: reads NEMO_GYM_CONFIG_DICT, finds the class, wraps it by
`checkpointed`, and serves. The directory of the log is $UNBROKEN_GYM_DIR/INSTANCE.

What concerns Unbroken may stand in the server's settings, under `unbroken`: `class` (`Class` or `module:Class`),
`capability`, `exclude`, `log_states`, `retire_after_verify`, `directory`. `unbroken: false` leaves that server as it is.

Ray is not started for a server that does not use it: NeMo Gym alone would start a cluster for each. If the
configuration gives `ray_head_node_address`, that cluster is joined.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unbroken.adapters.nemo_gym import words
from unbroken.adapters.nemo_gym.launch.configuration import (
    HEAD,
    OWN,
    RAY_ADDRESS,
    instances,
    settings_of,
)
from unbroken.adapters.nemo_gym.launch.locate import Located, install_root, locate
from unbroken.errors import ConfigError, UnbrokenError

CONFIG_DICT = "NEMO_GYM_CONFIG_DICT"
CONFIG_PATH = "NEMO_GYM_CONFIG_PATH"
_WORDS = frozenset({"capability", "exclude", "log_states", "retire_after_verify", "directory"})
_PR_SET_PDEATHSIG = 1


def serve(instance: str, *, wanted: str = "", project: Path | None = None) -> None:
    """Run the server called `instance`, until the process is told to end.

    Args:
        instance: its name in the configuration that NEMO_GYM_CONFIG_DICT holds.
        wanted: its class, `Class` or `module:Class`, where that cannot be found.
        project: the directory whose servers win over the installed ones; the current one, if None.

    Raises:
        ConfigError: it cannot be served; the sentence says why.
    """
    if not os.environ.get(CONFIG_DICT):
        raise ConfigError(
            f"{CONFIG_DICT} is not set.",
            hint="Start servers with `python -m unbroken.adapters.nemo_gym.launch up CONFIG --dir DIR`.",
        )
    project = (project or Path.cwd()).absolute()
    if root := os.environ.get(words.DIRECTORY):
        os.environ[words.DIRECTORY] = str(Path(root).expanduser().absolute())  # the directory changes below
    os.environ[CONFIG_PATH] = instance
    os.environ.setdefault("WANDB_MODE", "offline")  # nothing is reported from a server
    installed = install_root()
    server_utils: Any = importlib.import_module("nemo_gym.server_utils")
    omegaconf: Any = importlib.import_module("omegaconf")
    config: dict[str, Any] = omegaconf.OmegaConf.to_container(
        server_utils.get_global_config_dict(), resolve=True
    )
    if instance == HEAD:
        _serve_head(server_utils)
        return
    settings = settings_of(config, instance)
    found = next(one for one in instances(config) if one.name == instance)
    own = settings.get(OWN)
    located = locate(
        found.kind,
        found.directory,
        found.entrypoint,
        project=project,
        installed=installed,
        wanted=wanted or (str(own.get("class") or "") if isinstance(own, Mapping) else ""),
    )
    os.chdir(located.directory)  # as NeMo Gym starts it: its own files are found from there
    cls = located.load(project=project)
    if own is not False:
        cls = _wrapped(cls, instance, own, workers=found.workers)
    _settle_ray(server_utils, located, instance, address=config.get(RAY_ADDRESS))
    cls.run_webserver()


def _wrapped(cls: Any, instance: str, own: Any, *, workers: int) -> Any:
    from unbroken.adapters.nemo_gym.attach import checkpointed

    if workers > 1:
        raise ConfigError(
            f"{instance} asks for {workers} workers, among which its sessions would be scattered.",
            hint="Set num_workers to 1 and start more instances, or `unbroken: false` for a server without sessions.",
        )
    if own is not None and own is not True and not isinstance(own, Mapping):
        raise ConfigError(f"`unbroken` of {instance} is {own!r}.", hint="Give a mapping, or false.")
    options = {key: value for key, value in own.items() if key != "class"} if isinstance(own, Mapping) else {}
    if unknown := sorted(set(options) - _WORDS):
        raise ConfigError(
            f"`unbroken` of {instance} has no setting {unknown[0]!r}.",
            hint=f"There are: class, {', '.join(sorted(_WORDS))}.",
        )
    return checkpointed(cls, **options)


def _settle_ray(server_utils: Any, located: Located, instance: str, *, address: Any) -> None:
    if address:
        return
    if located.uses_ray:
        _say(
            f"{instance} uses Ray and the configuration gives no {RAY_ADDRESS}: it starts a cluster of its own"
        )
        return
    server_utils.initialize_ray = _without_ray  # run_webserver() looks it up there


def _without_ray() -> None:
    """Do nothing, where NeMo Gym would start a cluster."""


def _serve_head(server_utils: Any) -> None:
    """Answer what the configuration is, as the head server of the official command does."""
    _, thread, _ = server_utils.HeadServer.run_webserver()
    thread.join()


def end_with(parent: int) -> None:
    """Have this process killed when the one that started it is gone, however that ends.

    Not promised outside Linux: there, the next start in the same directory ends what is left.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before we asked
        os._exit(1)


def _say(text: str) -> None:
    sys.stderr.write(f"unbroken: {text}\n")
    sys.stderr.flush()


def main(arguments: Sequence[str]) -> int:
    """Serve as the command line says, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m unbroken.adapters.nemo_gym.launch.serve")
    parser.add_argument("instance", help=f"name of the server in ${CONFIG_DICT}")
    parser.add_argument("--class", dest="wanted", default="", help="its class, `Class` or `module:Class`")
    parser.add_argument("--parent", type=int, default=0, help="end with the process of this number")
    given = parser.parse_args(arguments)
    if given.parent:
        end_with(given.parent)
    try:
        serve(given.instance, wanted=given.wanted)
    except UnbrokenError as error:
        _say(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
