"""A script as a person writes it, whose second process Lightning starts. `DIRECTORY NAME KILL`: rank 1 is killed
after so many batches; -1: it is not."""

from __future__ import annotations

import sys

from tests.adapters.lightning import runner, trainings

if __name__ == "__main__":
    directory, name, kill = sys.argv[1], sys.argv[2], int(sys.argv[3])
    runner.train(
        {
            "case": "parallel",
            "options": {"directory": f"{directory}/files"},
            "root": f"{directory}/{name}",
            "out": f"{directory}/{name}.",
            "every": 5,
            "trainer": {"strategy": "ddp", "devices": 2, "max_epochs": 3},
            "ranks": 2,
            "kill": kill if kill >= 0 and trainings.rank_of_process() == 1 else None,
        }
    )
