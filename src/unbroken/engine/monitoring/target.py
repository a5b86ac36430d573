"""Where the numbers of a run go: nowhere, unless it is asked for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from unbroken.errors import ConfigError, shown

LAST_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitoring:
    """Where the metrics of a run are told. Several ways may be named; without any it is a mistake.

    `port`: an HTTP endpoint at `address` that Prometheus scrapes; 0 takes a free one. `textfile`: a file that the
    node exporter's textfile collector reads. `tensorboard`: a directory into which they are pushed as scalars.

    Raises:
        ConfigError: no place is named, or the port is none.

    >>> Monitoring(port=9109).address
    '127.0.0.1'
    """

    port: int | None = None
    address: str = "127.0.0.1"
    textfile: str | os.PathLike[str] = ""
    tensorboard: str | os.PathLike[str] = ""

    def __post_init__(self) -> None:
        port: object = self.port
        if port is None:
            if not (os.fspath(self.textfile) or os.fspath(self.tensorboard)):
                raise ConfigError(
                    "Monitoring() says of no place where the metrics go.",
                    hint="Give port=, textfile= or tensorboard=.",
                )
        elif isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= LAST_PORT:
            raise ConfigError(
                f"port must be a whole number from 0 to {LAST_PORT}, not {shown(port)}.",
                hint="Prometheus exporters usually take one from 9100 on.",
            )

    def check_outside(self, *runs: str) -> None:
        """Raise ConfigError where metrics would be written into the directory of a run, among its checkpoints."""
        for name, place in (("textfile", self.textfile), ("tensorboard", self.tensorboard)):
            if not os.fspath(place):
                continue
            path = Path(place).expanduser().resolve()
            for run in runs:
                inside = Path(run).resolve()
                if path == inside or inside in path.parents:
                    raise ConfigError(
                        f"{name}={shown(os.fspath(place))} lies inside the run {run}.",
                        hint="Give a place outside of it.",
                    )

    @classmethod
    def parse(cls, text: str) -> Monitoring:
        """Return what `port=9109,textfile=/var/lib/metrics/run.prom` says.

        Raises:
            ConfigError: it names no place, or one twice.
        """
        given: dict[str, object] = {}
        for part in text.split(","):
            name, _, value = part.strip().partition("=")
            if name not in ("port", "address", "textfile", "tensorboard") or not value:
                raise ConfigError(
                    f"{shown(part.strip())} names no place for metrics.",
                    hint="Write port=9109, textfile=PATH or tensorboard=PATH, separated by commas.",
                )
            if name in given:
                raise ConfigError(f"{shown(text)} says {name} twice.", hint="Keep one of the two.")
            given[name] = int(value) if name == "port" and value.isdigit() else value
        return cls(**given)  # type: ignore[arg-type]
