"""Runs RLlib trainings in child processes for the tests, so that they can be killed.

Imports once, then forks for every order that it reads, one JSON object a line; answers with the child's exit
status. Each child is a driver of its own in the Ray that `RAY_ADDRESS` names; a resumed run gets its child from
another runner than the killed one: another interpreter, with another hash seed.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

import unbroken.rllib
from tests.adapters.rllib import scenarios, trainings
from tests.adapters.rllib.digests import filters_of, weights_in, weights_of
from unbroken.adapters.rllib.source import AlgorithmSource
from unbroken.state.pickles import Trust


def leave_cold(places: list[str]) -> None:
    """Let restores forget these parts: they stay as the new process has built them."""
    plan = AlgorithmSource.plan

    def cold(self: AlgorithmSource, saved: Any, *, keep: Any = (), trusted: Trust = False) -> Any:
        return plan(self, saved, keep=[*keep, *places], trusted=trusted)

    AlgorithmSource.plan = cold  # type: ignore[method-assign]


def draws(actor: Any) -> dict[str, Any]:
    """Return what every generator of a process gives next, and what its module and its environments hold."""
    env = getattr(actor, "env", None)
    return {
        "python": random.random(),
        "numpy": float(np.random.random()),  # noqa: NPY002 - the global generator is what is asked
        "torch": torch.rand(1).item(),
        "weights": weights_of(actor.module),
        "filters": filters_of(actor),
        "resets": [one.reset()[0] for one in env.unwrapped.envs] if env is not None else [],
    }


def train(order: dict[str, Any]) -> None:
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    leave_cold(order.get("cold", []))
    if "scenario" in order:
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
        told = getattr(scenarios, order["scenario"])(order["root"], **order.get("training", {}))
        Path(order["out"]).write_text(json.dumps(told))
        ray.shutdown()
        return
    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    config = getattr(trainings, order["case"])(order["runners"], **order.get("training", {}))
    options: dict[str, Any] = {"every": 1, "keep_first": True, **order.get("options", {})}
    if not order.get("without"):
        config.callbacks(unbroken.rllib.checkpoints(order["root"], job=order.get("job", "job"), **options))
    if "config" in order:
        config.update_from_dict(order["config"])
    algo = config.build_algo()
    while algo.training_iteration < order["iterations"]:
        algo.train()
        session = getattr(algo.callbacks[-1], "session", None)
        if session is not None:
            # Where the run goes on from must not depend on the machine's load.
            session._engine.wait()
        if algo.training_iteration == order.get("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
    if session_is_open(algo):
        algo.callbacks[-1].session._end()
    result: dict[str, Any] = {
        "weights": [result.get() for result in algo.learner_group.foreach_learner(weights_in)],
        "here": draws(algo.env_runner) if algo.env_runner is not None else {},
        "there": algo.env_runner_group.foreach_env_runner(draws, local_env_runner=False),
        "buffer": float(algo.local_replay_buffer.rng.random()) if algo.local_replay_buffer is not None else 0,
        "iteration": algo.training_iteration,
    }
    Path(order["out"]).write_text(json.dumps(result, default=np.ndarray.tolist))
    algo.stop()
    ray.shutdown()


def session_is_open(algo: Any) -> bool:
    return getattr(algo.callbacks[-1], "session", None) is not None


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            with open(order["log"], "ab", buffering=0) as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            try:
                train(order)
            except BaseException:  # noqa: BLE001 - told, and the child ends
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
