"""What a configuration of NeMo Gym comes to, said by NeMo Gym itself in a process of its own.

The process that starts servers may be one of training, with another Python and without NeMo Gym. So the servers' Python is
asked: `python -m unbroken.adapters.nemo_gym.launch.resolve ANSWER` reads a configuration from standard input and
writes the resolved one into the file ANSWER. Files are looked for as the official commands do, `env.yaml` included.

Ports that the configuration leaves open stay open: NeMo Gym would draw new ones each time.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unbroken.adapters.nemo_gym.launch.configuration import HEAD, Plain
from unbroken.errors import ConfigError

MODULE = "unbroken.adapters.nemo_gym.launch.resolve"
WITHIN = 300.0
"""Seconds that reading a configuration may take, the import of NeMo Gym included."""


def resolve(
    config: Plain, *, python: str, project: Path, environment: Mapping[str, str], within: float = WITHIN
) -> Plain:
    """Return `config` with its files merged and its references followed, in `within` seconds at most.

    Raises:
        ConfigError: NeMo Gym refuses it, or that Python does not have NeMo Gym, or says nothing.
    """
    with tempfile.TemporaryDirectory(prefix="unbroken-") as directory:
        answer = Path(directory) / "answer.json"
        try:
            done = subprocess.run(
                [python, "-m", MODULE, str(answer)],
                input=json.dumps(config).encode(),
                cwd=project,
                # NeMo Gym begins a run of wandb where one is configured; it is not this process that rolls out.
                env={**environment, "WANDB_MODE": "disabled"},
                capture_output=True,
                check=False,
                timeout=within,
            )
        except subprocess.TimeoutExpired as error:
            raise ConfigError(
                f"{python} did not read the configuration within {within:g} s.",
                hint="Try it in a terminal: it imports NeMo Gym, which a slow disk or a missing network can hold up.",
            ) from error
        except OSError as error:
            raise ConfigError(
                f"{python} cannot be started: {error.strerror}.", hint="Name the Python that has NeMo Gym."
            ) from error
        if not answer.exists():
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
            raise ConfigError(
                f"{python} could not read the configuration: {last[0]}.",
                hint="Name a Python that has Unbroken and NeMo Gym.",
            )
        said: Plain = json.loads(answer.read_bytes())
    if "error" in said:
        raise ConfigError(
            f"NeMo Gym refuses the configuration: {said['error']}",
            hint="Mend it; ng_run would refuse it too.",
        )
    return dict(said["config"])


def main(arguments: list[str]) -> int:
    """Answer one request; see the module."""
    gym: Any = importlib.import_module("nemo_gym.global_config")
    omegaconf: Any = importlib.import_module("omegaconf")
    original = gym.GlobalConfigDictParser.validate_and_populate_defaults

    def keep_open(self: Any, server_instance_configs: Any, **options: Any) -> Any:
        parts = [config.get_inner_run_server_config_dict() for config in server_instance_configs]
        left_open = [part for part in parts if not part.get("port")]
        result = original(self, server_instance_configs, **options)
        for part in left_open:
            with omegaconf.open_dict(part):
                part["port"] = None
        return result

    given: set[str] = set()

    def look(self: Any, merged: Any) -> None:
        given.update(key for key, value in merged.items_ex(resolve=False) if value is not None)
        gym.GlobalConfigDictParser.raise_on_missing_values(self, merged)

    said: dict[str, Any]
    try:
        parser: Any = type(
            "Parser",
            (gym.GlobalConfigDictParser,),
            {"validate_and_populate_defaults": keep_open, "raise_on_missing_values": look},
        )
        config = parser().parse(
            gym.GlobalConfigDictParserConfig(
                initial_global_config_dict=omegaconf.OmegaConf.create(json.load(sys.stdin)),
                skip_load_from_cli=True,
            )
        )
        if HEAD not in given:  # NeMo Gym's own default would be the same port for everybody
            del config[HEAD]
        said = {"config": omegaconf.OmegaConf.to_container(config, resolve=True)}
    except Exception as error:  # noqa: BLE001 - whatever it is, the asking process says it
        said = {"error": str(error) or type(error).__name__}
    temporary = f"{arguments[0]}.part"
    with open(temporary, "w") as file:
        json.dump(said, file)
    os.replace(temporary, arguments[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
