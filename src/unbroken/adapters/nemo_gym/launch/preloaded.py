"""The process behind `spawn.Preloaded`: imports NeMo Gym, then forks a server for each line on standard input.

It answers each line with the number of the new process. When standard input ends, or the process that started it is gone, it
ends, and the kernel ends its children. It runs one Python thread only, so that forking is sound.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import traceback
import warnings
from typing import Any

from unbroken.adapters.nemo_gym.launch import serve

IMPORTED = (
    "nemo_gym.base_resources_server",
    "nemo_gym.base_responses_api_agent",
    "nemo_gym.base_responses_api_model",
    "nemo_gym.openai_utils",
    "uvicorn",
)
"""What every server needs, and what takes its time."""


def main(arguments: list[str]) -> int:
    """Fork servers until there is nobody to ask for them."""
    serve.end_with(int(arguments[0]))
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is shared stays shared
    # Ray brings a thread of its allocator, which that knows how to start again in a fork.
    warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            _become(asked, parent)
        answers.write(b"%d\n" % child)
    return 0


def _become(asked: dict[str, Any], parent: int) -> None:
    code = 1
    try:
        os.setsid()
        serve.end_with(parent)
        os.environ.update(asked["environment"])
        os.chdir(asked["project"])
        sys.path[:0] = [
            path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path
        ]
        log = os.open(asked["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, null), (1, log), (2, log)):
            os.dup2(source, target)
        os.closerange(3, 256)
        code = serve.main(asked["arguments"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - a fork must never fall back into the loop of its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
