"""`python -m unbroken.adapters.nemo_gym.launch up|wrap|trim`: what `unbroken gym` does, where only servers are installed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from unbroken.adapters.nemo_gym.launch.project import wrap
from unbroken.adapters.nemo_gym.launch.rollouts_file import trim_torn_line
from unbroken.adapters.nemo_gym.launch.up import up
from unbroken.errors import UnbrokenError


def main(arguments: Sequence[str]) -> int:
    """Carry out one command, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m unbroken.adapters.nemo_gym.launch", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("up", help="start the servers of a configuration and keep them running")
    one.add_argument("config", nargs="+", help="YAML files, as NeMo Gym's config_paths")
    one.add_argument(
        "--dir", required=True, dest="directory", help="where logs are kept, and found by the next start"
    )
    one.add_argument(
        "--head", action="store_true", help="start a head server as well, for ng_collect_rollouts"
    )
    one.add_argument(
        "--preload", action="store_true", help="fork servers from one process: faster to restart"
    )
    one = commands.add_parser("wrap", help="write directories of wrapped servers for ng_run")
    one.add_argument("config", nargs="+", help="YAML files, as NeMo Gym's config_paths")
    one.add_argument("--out", required=True, help="where they are written; start ng_run there")
    one = commands.add_parser("trim", help="cut a torn last line off an output file of ng_collect_rollouts")
    one.add_argument("path")
    given = parser.parse_args(arguments)
    try:
        if given.command == "up":
            return up(given.config, directory=given.directory, head=given.head, preload=given.preload)
        if given.command == "wrap":
            for wrapped in wrap(given.config, out=given.out):
                _print(f"{wrapped.directory}: {wrapped.class_name} of {wrapped.module}")
            return 0
        count = trim_torn_line(given.path)
        _print(f"{count} bytes of a torn last line moved to {given.path}.torn" if count else "no torn line")
    except UnbrokenError as error:
        sys.stderr.write(f"unbroken: {error}\n")
        return 2
    return 0


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
