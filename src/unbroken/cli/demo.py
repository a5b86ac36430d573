"""`unbroken demo`: a PPO and a DQN, killed and resumed, beside the framework's own save and load."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from unbroken.cli.guard import DebugOption, JsonOption
from unbroken.errors import ConfigError

SCRIPT = Path("demo") / "__main__.py"


def demo(json: JsonOption = False, debug: DebugOption = False) -> int:
    """Run the demo of a source checkout: bit-exact resume, with a picture."""
    if not SCRIPT.is_file():
        raise ConfigError(
            "The demo belongs to the source tree and is not here.",
            hint="Clone the repository, change into it and run: make demo",
        )
    sys.path.insert(0, str(Path.cwd()))
    try:
        runpy.run_module("demo", run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
