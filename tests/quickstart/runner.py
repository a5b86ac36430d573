"""A process that has imported what quickstarts need, and runs each start of one in a child of its own (`exactness.forked`)."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module

from exactness.forked import serve, warm_up
from tests.quickstart import mortal


def start(order: dict[str, str]) -> None:
    os.chdir(order["folder"])
    mortal.run(order["script"], kill_at=int(order["kill_at"]), cold=order["cold"], arguments=[])


def main() -> None:
    for name in sys.argv[1:]:
        import_module(name)
    warm_up()
    serve(json.loads, start, log=lambda order: order["log"])


if __name__ == "__main__":
    main()
