"""What is found out about environments before a training, and what it promises: never more than was seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from unbroken.adapters.sb3 import session
from unbroken.adapters.sb3.environments import look_around
from unbroken.adapters.sb3.workers import SubprocWorkers
from unbroken.capture import verdicts
from unbroken.capture.attaching import attach_once, kind_of
from unbroken.capture.environments import How, Verdict
from unbroken.capture.worker_agent import Answer
from unbroken.errors import NotCapturable
from unbroken.repo.repository import Repository
from unbroken.sb3 import CheckpointCallback
from unbroken.types import Fidelity

from .trainings import small

KINDS = [DummyVecEnv, partial(SubprocVecEnv, start_method="fork")]
NAMES = ["here", "workers"]


@pytest.fixture
def liars(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "capture/worlds"))
    import liars  # type: ignore[import-not-found]

    return liars


class Walk(gymnasium.Env[Any, Any]):
    """An environment of the user's own."""

    observation_space = gymnasium.spaces.Box(-100, 100, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.at = self.np_random.normal(size=2)
        return self.at.astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at = self.at + self.np_random.normal(size=2)
        return self.at.astype(np.float32), 0.0, False, False, {}


class Sealed(Walk):
    """Lets nobody stand before its methods."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("step", "reset"):
            raise AttributeError(f"{name} is sealed")
        super().__setattr__(name, value)


class Other(gymnasium.Wrapper[Any, Any, Any, Any]):
    pass


@pytest.fixture
def built() -> Iterator[list[VecEnv]]:
    built: list[VecEnv] = []
    yield built
    for venv in built:
        venv.close()


def training(venv: VecEnv, built: list[VecEnv]) -> PPO:
    built.append(venv)
    model = PPO("MlpPolicy", venv, n_steps=8, batch_size=8, n_epochs=1, **small())
    venv.seed(0)
    venv.reset()
    return model


@pytest.mark.parametrize("vector", KINDS, ids=NAMES)
def test_each_kind_of_a_vector_is_looked_at(vector: Any, liars: Any, built: list[VecEnv]) -> None:
    makers = [partial(gymnasium.make, "Honest-v0"), partial(gymnasium.make, "OnTheModule-v0")]
    around = look_around(training(vector(makers), built), CheckpointCallback(1, "unused"))
    assert around.promise.fidelity is not Fidelity.EXACT
    assert around.names == ("Honest-v0", "OnTheModule-v0")
    fidelities = {kind.rpartition(":")[2]: verdict.fidelity for kind, verdict in around.verdicts.items()}
    assert fidelities["Honest"] is Fidelity.EXACT
    assert fidelities["OnTheModule"] is not Fidelity.EXACT


@pytest.mark.parametrize("vector", KINDS, ids=NAMES)
def test_the_verdict_of_an_earlier_start_is_used_again(vector: Any, built: list[VecEnv]) -> None:
    kept = {
        kind_of(Walk()): Verdict(How.STRUCTURAL, Fidelity.EXACT),
        kind_of(Other(Walk())): Verdict(How.STRUCTURAL, Fidelity.APPROXIMATE, "the trial took too long"),
    }
    model = training(vector([Walk, lambda: Other(Walk())]), built)
    around = look_around(model, CheckpointCallback(1, "unused"), kept)
    assert around.verdicts == kept
    assert around.promise.fidelity is Fidelity.APPROXIMATE
    assert around.promise.reason == "the trial took too long"


def test_what_is_known_by_name_stands_above_a_verdict_from_elsewhere(built: list[VecEnv]) -> None:
    make = partial(gymnasium.make, "CartPole-v1")
    kept = {kind_of(make()): Verdict(How.REPLAY, Fidelity.APPROXIMATE, "from elsewhere")}
    around = look_around(training(DummyVecEnv([make]), built), CheckpointCallback(1, "unused"), kept)
    assert around.promise.fidelity is Fidelity.EXACT
    assert around.verdicts == {}


@pytest.mark.parametrize("vector", KINDS, ids=NAMES)
def test_what_cannot_be_put_in_place_is_an_error_and_no_promise(vector: Any, built: list[VecEnv]) -> None:
    kept = {
        kind_of(Walk()): Verdict(How.STRUCTURAL, Fidelity.EXACT),
        kind_of(Sealed()): Verdict(How.REPLAY, Fidelity.EXACT),
    }
    model = training(vector([Walk, Sealed]), built)
    with pytest.raises(NotCapturable, match="sealed"):
        look_around(model, CheckpointCallback(1, "unused"), kept)


def test_verdicts_are_kept_with_the_run_and_used_at_the_next_start(
    tmp_path: Path, built: list[VecEnv]
) -> None:
    kind = f"stable_baselines3.common.monitor:Monitor/{kind_of(Walk())}"
    slow = Verdict(How.STRUCTURAL, Fidelity.APPROXIMATE, "the trial took too long")

    def start(resume: Any = "auto") -> CheckpointCallback:
        ours = CheckpointCallback(4, tmp_path, resume=resume)
        training(DummyVecEnv([lambda: Monitor(Walk())]), built).learn(16, callback=ours)
        session._finished.clear()
        return ours

    repository = Repository.open(tmp_path, "rl_model", create=True)
    assert verdicts.recorded(tmp_path, "rl_model") == {}
    start()
    first = verdicts.recorded(tmp_path, "rl_model")
    assert first[kind].fidelity is Fidelity.EXACT
    # As if the first trial had been cut off: what it said then is said again, and not tried once more.
    commit = repository.commits()[0]
    meta = repository.meta(commit)
    told = verdicts.record({kind: slow})
    state = repository.load(commit)
    with repository.writer() as writer:
        writer.write(state, msgspec.structs.replace(meta, counters={**meta.counters, **told}))
    report = start().report
    assert report is not None and report.promises["env_states"].reason == slow.reason
    assert verdicts.recorded(tmp_path, "rl_model") == {kind: slow}
    report = start("never").report
    assert report is not None and report.promises["env_states"].fidelity is Fidelity.EXACT


def test_records_of_verdicts_that_nobody_understands_are_tried_out_again() -> None:
    assert verdicts._read({"a": {"how": "MAGIC", "fidelity": "exact", "reason": ""}, "b": 5}) == {}
    assert verdicts._read([1]) == {}


class Holds(BaseCallback):
    def __init__(self, held: object) -> None:
        super().__init__()
        self.held = held

    def _on_step(self) -> bool:
        return True


def second_model() -> Any:
    return PPO("MlpPolicy", DummyVecEnv([Walk]), n_steps=8, batch_size=8, n_epochs=1, **small())


def behind_a_function() -> Callable[[], Any]:
    world = Walk()
    return lambda: world.step(0)


PLACES: dict[str, Callable[[], Any]] = {
    "an attribute": Walk,
    "a list in a dictionary": lambda: {"worlds": [Walk()]},
    "a variable of a function": behind_a_function,
    "a second model": second_model,
    "a vector of Gymnasium's": lambda: gymnasium.vector.SyncVectorEnv([Walk]),
    "a vector of Gymnasium's in other processes": lambda: gymnasium.vector.AsyncVectorEnv([Walk]),
    "another callback": lambda: Holds(Walk()),
}


@pytest.mark.parametrize("place", PLACES)
def test_an_environment_is_looked_at_wherever_a_callback_has_it(place: str, built: list[VecEnv]) -> None:
    held = PLACES[place]()
    model = training(DummyVecEnv([partial(gymnasium.make, "CartPole-v1")]), built)
    root = CallbackList([Holds(held), CheckpointCallback(1, "unused")])
    kept = {kind_of(Walk()): Verdict(How.STRUCTURAL, Fidelity.APPROXIMATE, "it reads the clock")}
    if place == "a second model":
        kept = {kind_of(held.env.envs[0]): verdict for verdict in kept.values()}
    around = look_around(model, root, kept)
    assert around.promise.reason == "it reads the clock"
    assert around.names == ("CartPole-v1",)
    assert len(around.environments) == 2
    if "processes" in place:
        held.close()


def test_of_two_chains_of_wrappers_around_one_environment_only_the_first_is_recorded() -> None:
    replayed = Verdict(How.REPLAY, Fidelity.EXACT)
    world = Walk()
    attach_once(Other(world), replayed)
    recorded = vars(world)["step"]
    for other in (world, Other(Other(world))):
        assert attach_once(other, replayed).how is How.REPLAY
        assert vars(world)["step"] is recorded


class Mute(SubprocWorkers):
    """Workers that cannot try anything out."""

    def ask_one(self, worker: int, command: str, *arguments: Any) -> Answer:
        return Answer(error="no room for another process") if command == "probe" else Answer()


def test_a_trial_that_failed_in_a_worker_lowers_the_promise(
    built: list[VecEnv], monkeypatch: pytest.MonkeyPatch
) -> None:
    from unbroken.adapters.sb3 import environments

    model = training(SubprocVecEnv([Walk], start_method="fork"), built)
    monkeypatch.setattr(environments, "workers_of", Mute)
    promise = look_around(model, CheckpointCallback(1, "unused")).promise
    assert promise.fidelity is Fidelity.APPROXIMATE
    assert "no room for another process" in promise.reason


def test_a_vector_in_which_nobody_can_look_is_never_exact(built: list[VecEnv]) -> None:
    model = training(DummyVecEnv([Walk]), built)
    own: dict[str, Any] = vars(model.env)
    hidden = own.pop("envs")
    try:
        promise = look_around(model, CheckpointCallback(1, "unused")).promise
    finally:
        own["envs"] = hidden
    assert promise.fidelity is Fidelity.APPROXIMATE
