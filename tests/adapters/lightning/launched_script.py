"""A script as a person writes it, whose second process Lightning starts. `DIRECTORY NAME [RANK BATCHES SIGNAL]`: to
this rank that signal is sent once it has trained on so many batches."""

from __future__ import annotations

import sys
from typing import Any

from tests.adapters.lightning import runner, trainings

if __name__ == "__main__":
    directory, name, *fault = sys.argv[1:]
    order: dict[str, Any] = {
        "case": "parallel",
        "options": {"directory": f"{directory}/files"},
        "root": f"{directory}/{name}",
        "out": f"{directory}/{name}.",
        "every": 5,
        "trainer": {"strategy": "ddp", "devices": 2, "max_epochs": 3},
        "ranks": 2,
    }
    if fault and int(fault[0]) == trainings.rank_of_process():
        order |= {"kill": int(fault[1]), "signal": int(fault[2])}
    runner.train(order)
