"""What happens to people, one function each; run in a child of `runner`, which tells what they return."""

from __future__ import annotations

import json
import os
import signal
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray.rllib.callbacks.callbacks import RLlibCallback

import unbroken.rllib
from tests.adapters.rllib import trainings
from tests.adapters.rllib.digests import optimizer_in, weights_in, weights_of
from unbroken.adapters.rllib import session
from unbroken.adapters.rllib.supported import check_supported
from unbroken.errors import UnbrokenError
from unbroken.repo.repository import Repository


def begin(config: Any, root: str, **options: Any) -> Any:
    """Build an Algorithm as the first of a process; a second one would be a further training of the run."""
    session._finished.clear()
    return config.copy().callbacks(unbroken.rllib.checkpoints(root, job="job", **options)).build_algo()


def train(algo: Any, until: int) -> Any:
    while algo.training_iteration < until:
        algo.train()
        session = algo.callbacks[-1].session
        if session is not None:
            session._engine.wait()  # where the run goes on from must not depend on the machine's load
    return algo


def refusal(config: Any, root: str, **options: Any) -> str:
    try:
        begin(config, root, **options).stop()
    except UnbrokenError as error:
        return str(error)
    return "nothing was refused"


def positions(root: str) -> list[tuple[int, str]]:
    return [(commit.step, commit.position) for commit in Repository.open(root, "job").commits()]


def what_cannot_be_saved(root: str) -> dict[str, str]:
    config = trainings.ppo(0).callbacks([unbroken.rllib.checkpoints(root), RLlibCallback])
    try:
        config.build_algo()
        order = "nothing was refused"
    except UnbrokenError as error:
        order = str(error)
    return {
        "threads": refused_on_a_gpu(),
        "order": order,
        "written": str(os.path.exists(root)),
    }


def refused_on_a_gpu() -> str:
    """Return what is said of threads that load batches to a GPU, without having one."""
    algo = trainings.asynchronous("impala", 0, 0).build_algo()
    algo.config = algo.config.copy(copy_frozen=False)
    algo.config.num_gpus_per_learner = 1
    try:
        check_supported(algo)
    except UnbrokenError as error:
        return str(error)
    finally:
        algo.stop()
    return "nothing was refused"


def asynchronous_and_killed(root: str, **training: Any) -> None:
    algo = train(begin(trainings.asynchronous(**training), root, every=1), 2)
    algo.callbacks[-1].session._engine.wait()
    Path(f"{root}.json").write_text(json.dumps(standing(algo)))
    os.kill(os.getpid(), signal.SIGKILL)


def asynchronous_and_resumed(root: str, **training: Any) -> dict[str, Any]:
    algo = begin(trainings.asynchronous(**training), root, every=1)
    report = algo.callbacks[-1].report
    told = {
        "at the start": standing(algo),
        "line": report.line,
        "promises": {name: promise.fidelity for name, promise in report.promises.items()},
    }
    train(algo, 4)
    told["at the end"] = standing(algo)
    algo.stop()
    repository = Repository.open(root, "job")
    told["counters"] = dict(repository.meta(repository.commits()[0]).counters)
    told["position"] = positions(root)[0][1]
    return told


def standing(algo: Any) -> dict[str, Any]:
    """Return what has been learned, and what was counted."""
    learners = algo.learner_group
    return {
        "weights": [result.get() for result in learners.foreach_learner(weights_in)],
        "optimizer": [result.get() for result in learners.foreach_learner(optimizer_in)],
        "weights of runners": algo.env_runner_group.foreach_env_runner(
            lambda runner: weights_of(runner.module), local_env_runner=False
        ),
        "iteration": algo.training_iteration,
        "sampled": algo.callbacks[-1].session.step,
        "episodes": algo.callbacks[-1].session.episodes,
        "trained": algo.metrics.peek(
            ("learners", "default_policy", "num_module_steps_trained_lifetime"), default=0
        ),
    }


def what_was_changed(root: str) -> dict[str, Any]:
    train(begin(trainings.ppo(0), root, every=1), 2).stop()
    told: dict[str, Any] = {
        "environment": refusal(trainings.ppo(0, env="Acrobot-v1"), root),
        "envs": refusal(trainings.ppo(0, envs=3), root),
        "network": refusal(trainings.ppo(0).rl_module(model_config={"fcnet_hiddens": [9]}), root),
        "runners": refusal(trainings.ppo(1), root),
        "strict": refusal(trainings.ppo(0, lr=0.01), root, strict=True),
    }
    algo = begin(trainings.ppo(0, lr=0.01, gamma=0.9), root)
    (optimizer,) = algo.learner_group._learner._named_optimizers.values()
    told["changes"] = list(algo.callbacks[-1].report.changes)
    told["lr"] = optimizer.param_groups[0]["lr"]
    train(algo, 3).stop()
    return told


def what_was_learned(root: str) -> dict[str, Any]:
    algo = begin(trainings.ppo(0), root, every=1)
    losses: list[dict[str, float]] = []
    for _ in range(3):
        learner = algo.train()["learners"]["default_policy"]
        losses.append({name: float(value) for name, value in learner.items() if "loss" in name})
        algo.callbacks[-1].session._engine.wait()
    algo.stop()
    records = [dict(record.metrics) for record in Repository.open(root, "job").saves()]
    return {"losses": losses, "records": records}


def another_number_of_runners(root: str) -> dict[str, Any]:
    train(begin(trainings.ppo(1), root, every=1), 2).stop()
    told: dict[str, Any] = {"refused": refusal(trainings.ppo(2), root)}
    algo = begin(trainings.ppo(2), root, allow_changed={"num_env_runners"})
    report = algo.callbacks[-1].report
    told["changes"] = list(report.changes)
    told["promises"] = {name: promise.fidelity for name, promise in report.promises.items()}
    told["seeds"] = seed_of(algo)
    told["before"] = generators_of(algo)
    train(algo, 3)
    told["here"] = generators_of(algo)
    algo.stop()
    told["iteration"] = algo.training_iteration
    repository = Repository.open(root, "job")
    told["saved"] = repository.meta(repository.commits()[0]).fidelity["env_runners"].fidelity
    told["refused fewer"] = refusal(trainings.ppo(1), root)
    told["refused none"] = refusal(trainings.ppo(0), root)
    told["none"] = refusal(trainings.ppo(0), root, allow_changed={"num_env_runners"})
    fewer = begin(trainings.ppo(1), root, allow_changed={"num_env_runners"}, strict=True)
    told["fewer"] = list(fewer.callbacks[-1].report.changes)
    told["of fewer"] = fewer.callbacks[-1].report.promises["env_runners"].fidelity
    told["kept"] = generators_of(fewer)
    train(fewer, 4).stop()
    told["again"] = begin(trainings.ppo(1), root).callbacks[-1].report.changes
    return told


def generators_of(algo: Any) -> list[str]:
    """Return what the environments of every remote runner will draw from."""
    found: list[str] = algo.env_runner_group.foreach_env_runner(
        lambda runner: str(
            [env.unwrapped.np_random.bit_generator.state for env in runner.env.unwrapped.envs]
        ),
        local_env_runner=False,
    )
    return found


class Killer(RLlibCallback):
    """Kills an env runner after the first iteration."""

    def on_train_result(self, *, algorithm: Any, **kwargs: Any) -> None:
        if algorithm.training_iteration == 1:
            (pid,) = algorithm.env_runner_group.foreach_env_runner(
                lambda _: os.getpid(), local_env_runner=False
            )
            os.kill(pid, signal.SIGKILL)


def a_runner_that_dies(root: str) -> dict[str, Any]:
    config = trainings.ppo(1).callbacks([Killer, unbroken.rllib.checkpoints(root, job="job", every=1)])
    config.fault_tolerance(restart_failed_env_runners=True, delay_between_env_runner_restarts_s=0.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        algo = config.build_algo()
        before = seed_of(algo)
        while not algo.callbacks[-1].session._source.progress["env_runners_recreated"]:
            algo.train()
        train(algo, algo.training_iteration + 1)
        after = seed_of(algo)
        now = algo.env_runner_group.foreach_env_runner(in_the_runner, local_env_runner=False)
        algo.stop()
    repository = Repository.open(root, "job")
    meta = repository.meta(repository.commits()[0])
    promise = meta.fidelity["env_runners"]
    return {
        "said": [str(w.message) for w in caught if w.category is unbroken.rllib.EnvRunnerRecreatedWarning],
        "seeds": [before, after],
        "fidelity": promise.fidelity,
        "position": positions(root)[0][1],
        "now": now,
        "worker_status": meta.worker_status,
    }


def in_the_runner(runner: Any) -> dict[str, Any]:
    """Return what a runner's environments say themselves; one that waits for its reset has no open episode yet."""
    envs = runner.env.unwrapped.envs
    both = zip(envs, runner._ongoing_episodes, strict=True)
    return {
        "pid": os.getpid(),
        "steps": [env.get_wrapper_attr("_elapsed_steps") if one.is_reset else 0 for env, one in both],
        "seeds": [env.unwrapped.np_random_seed for env in envs],
    }


def a_runner_that_is_dead_at_the_end(root: str) -> dict[str, Any]:
    """One that may be started again, and one that may not."""
    told: dict[str, Any] = {}
    for restarts in (True, False):
        config = trainings.ppo(1).fault_tolerance(restart_failed_env_runners=restarts)
        at = f"{root}-{restarts}"
        with caught() as said:
            algo = train(begin(config, at, every=1), 2)
            (pid,) = algo.env_runner_group.foreach_env_runner(lambda _: os.getpid(), local_env_runner=False)
            os.kill(pid, signal.SIGKILL)
            try:
                algo.stop()
                error = ""
            except UnbrokenError as failed:
                error = f"{type(failed).__name__}: {failed}"
        repository = Repository.open(at, "job")
        meta = repository.meta(repository.commits()[0])
        told[str(restarts)] = {
            "error": error,
            "newest": positions(at)[0],
            "fidelity": meta.fidelity["env_runners"].fidelity,
            "episodes": [meta.episodes, meta.worker_status[0]["episodes"]],
            "said": [str(w.message) for w in said if w.category is unbroken.rllib.EnvRunnerRecreatedWarning],
        }
    return told


def seed_of(algo: Any) -> list[int]:
    seeds: list[int] = algo.env_runner_group.foreach_env_runner(
        lambda runner: runner._seed, local_env_runner=False
    )
    return seeds


class Broken(RLlibCallback):
    """A callback of somebody's that fails."""

    def on_sample_end(self, *, env_runner: Any = None, **kwargs: Any) -> None:
        if env_runner.num_env_steps_sampled_lifetime > 100:
            raise ZeroDivisionError


def ends(root: str) -> dict[str, Any]:
    """Errors, ends, and starts after the end."""
    config = trainings.ppo(0).callbacks([Broken, unbroken.rllib.checkpoints(root, job="job", every=1)])
    algo = config.build_algo()
    try:
        train(algo, 9)
    except ZeroDivisionError:
        pass
    finally:
        algo.stop()
    told: dict[str, Any] = {"after an error": positions(root)[0], "failed in": algo.training_iteration + 1}
    train(begin(trainings.ppo(0), root, every=1), 4).stop()
    told["at the end"] = positions(root)[0]
    with caught() as said:
        again = train(begin(trainings.ppo(0).reporting(min_time_s_per_iteration=1), root, every=1), 4)
        told["hooks"] = sorted({"log_result", "cleanup"} & vars(again).keys())
        again.stop()
        told["hooks after"] = sorted({"log_result", "cleanup"} & vars(again).keys())
    told["warned"] = [str(w.message) for w in said if w.category is unbroken.rllib.IterationLengthWarning]
    told["once more"] = [again.callbacks[-1].report.line, positions(root)[0]]
    return told


@contextmanager
def caught() -> Generator[list[Any]]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield said
