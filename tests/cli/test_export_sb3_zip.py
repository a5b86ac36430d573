"""export --to sb3-zip: the file is the one that `model.save()` has written at the same point of the same training."""

from __future__ import annotations

import datetime
import enum
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import gymnasium.envs.registration
import gymnasium.wrappers.common
import numpy as np
import pytest

from tests.cli.command import Answer, unbroken

pytest.importorskip("stable_baselines3")
pytest.importorskip("sb3_contrib")

import torch
from stable_baselines3 import A2C, DDPG, DQN, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import FakeImageEnv
from stable_baselines3.common.noise import NormalActionNoise, VectorizedActionNoise
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.utils import LinearSchedule, get_linear_fn, set_random_seed
from stable_baselines3.common.vec_env import VecNormalize

from tests.adapters.sb3 import trainings
from unbroken.adapters.sb3.policy import POLICY
from unbroken.adapters.sb3.source import TrainingSource
from unbroken.adapters.sb3.zip_file import place_of_model, read_model
from unbroken.capture.source import GraftSource, policy_of_loaded
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.settings import Settings
from unbroken.repo.repository import Repository
from unbroken.sb3 import CheckpointCallback
from unbroken.state.snapshot import Snapshot

OF_A_START = {"start_time", "tensorboard_log"}
"""What a checkpoint does not hold; `learn()` sets the first anew, and the second is an argument of `load`."""


def same(a: Any, b: Any) -> bool:
    """Whether two things that SB3 has loaded are equal through and through."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype) and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) or type(a).__name__ == "deque":
        limits = getattr(a, "maxlen", None), getattr(b, "maxlen", None)
        return limits[0] == limits[1] and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.random.Generator):
        return same(a.bit_generator.state, b.bit_generator.state)
    if isinstance(a, (type, types.FunctionType, enum.Enum)):
        return a is b
    if hasattr(a, "__dict__"):
        return same(unordered(vars(a)), unordered(vars(b)))
    return bool(a == b)


def unordered(value: dict[str, Any]) -> dict[str, Any]:
    return dict(sorted(value.items()))


class Training:
    """A training with checkpoints, and beside each of them the file that SB3 writes at the same point."""

    def __init__(self, folder: Path, model: Any, steps: int, every: int) -> None:
        self.folder, self.model = folder, model
        capture = TrainingSource.capture

        def with_own_file(source: TrainingSource) -> Snapshot:
            model.save(folder / f"own-{model.num_timesteps}.zip")
            return capture(source)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TrainingSource, "capture", with_own_file)
            model.learn(steps, callback=CheckpointCallback(every, str(folder / "run"), keep_last=99))

    def export(self, step: int | None = None) -> Answer:
        run = "run" if step is None else f"run@{step}"
        return unbroken(
            "export", run, "--to", "sb3-zip", "exported.zip", "--force", "--json", cwd=self.folder
        )

    def files(self, step: int) -> tuple[Path, Path]:
        """Return SB3's file of a step and ours."""
        answer = self.export(step)
        assert answer.code == 0, answer.err
        return self.folder / f"own-{step}.zip", self.folder / "exported.zip"

    @property
    def steps(self) -> list[int]:
        """All steps with a checkpoint."""
        listed = unbroken("ls", "run", "--json", cwd=self.folder).json
        return sorted({entry["commit"]["step"] for run in listed["runs"] for entry in run["checkpoints"]})


def contrib(name: str, *args: Any, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        import sb3_contrib

        policy, env, *n_envs = args
        made = make_vec_env(env, n_envs=n_envs[0] if n_envs else 2, seed=0)
        return getattr(sb3_contrib, name)(policy, made, **trainings.small(**options))

    return make


def masked_env() -> Any:
    from sb3_contrib.common.envs import InvalidActionEnvDiscrete

    return InvalidActionEnvDiscrete(dim=8, n_invalid_actions=3)


OFF: dict[str, Any] = {"learning_starts": 40, "buffer_size": 500, "batch_size": 32}
MODELS: dict[str, Callable[[], Any]] = {
    "ppo": trainings.ppo,
    "ppo-gsde": trainings.ppo_gsde,
    "ppo-normalized": trainings.half_cheetah,
    "a2c": trainings.a2c,
    "a2c-images": lambda: A2C(
        "CnnPolicy",
        make_vec_env(FakeImageEnv, n_envs=2, seed=0, env_kwargs={"screen_height": 36, "screen_width": 36}),
        policy_kwargs={"features_extractor_kwargs": {"features_dim": 8}},
        seed=0,
        device="cpu",
    ),
    "dqn": trainings.dqn,
    "dqn-dict": trainings.dqn_dict,
    "dqn-her": trainings.dqn_her,
    "sac": trainings.sac,
    "sac-gsde": trainings.sac_gsde,
    "sac-fixed": lambda: trainings.sac(ent_coef=0.1),
    "td3": trainings.td3_episodic,
    "ddpg": lambda: DDPG(
        "MlpPolicy",
        make_vec_env("Pendulum-v1", n_envs=2, seed=0),
        action_noise=VectorizedActionNoise(NormalActionNoise(np.zeros(1), np.ones(1)), 2),
        **OFF,
        **trainings.small(),
    ),
    "qrdqn": trainings.qrdqn,
    "tqc": contrib("TQC", "MlpPolicy", "Pendulum-v1", **OFF),
    "crossq": contrib("CrossQ", "MlpPolicy", "Pendulum-v1", **OFF),
    "trpo": contrib("TRPO", "MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32),
    "recurrent": contrib(
        "RecurrentPPO", "MlpLstmPolicy", "CartPole-v1", n_steps=32, batch_size=32,
        policy_kwargs={"lstm_hidden_size": 8, "net_arch": [8]},
    ),
    "maskable": contrib("MaskablePPO", "MlpPolicy", masked_env, n_steps=32, batch_size=32),
    "ars": contrib("ARS", "LinearPolicy", "CartPole-v1", n_delta=4, policy_kwargs={}),
}  # fmt: skip


def loaded(model: Any, file: Path, env: Any = None) -> Any:
    return type(model).load(file, env=env, device="cpu")


def actions(model: Any) -> list[Any]:
    """What a loaded model does without chance, with its memory if it has one."""
    space = model.observation_space
    space.seed(3)
    found: list[Any] = []
    memory, begin = None, np.ones(1, bool)
    for _ in range(20):
        action, memory = model.predict(space.sample(), state=memory, episode_start=begin, deterministic=True)
        begin = np.zeros(1, bool)
        found += [action, memory]
    return found


def trained_on(training: Training, name: str, file: Path) -> dict[str, Any]:
    """What some more steps make of a file."""
    env = MODELS[name]().env
    env.seed(5)
    for one in env.unwrapped.envs:
        one.unwrapped.observation_space.seed(5)  # of which the images are drawn
    model = loaded(training.model, file, env)
    set_random_seed(11)
    # A buffer that begins anew has no whole episode yet, of which HER draws.
    model.learn(100, reset_num_timesteps=name == "dqn-her")
    return {"steps": model.num_timesteps, "updates": model._n_updates, **model.get_parameters()}


QUICK = {"ppo", "sac", "dqn-dict", "recurrent", "ars"}


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.exactness) for name in MODELS]
)
def test_the_file_is_the_one_that_the_model_writes(name: str, tmp_path: Path) -> None:
    # Not a multiple of a rollout: there are checkpoints in the middle of one.
    training = Training(tmp_path, MODELS[name](), 230, 35)
    steps = training.steps
    assert len(steps) > 1  # ARS saves between two updates
    weights: list[Any] = []
    own = exported = Path()
    for step in sorted({steps[0], steps[len(steps) // 2], steps[-1]}):
        own, exported = training.files(step)
        data, parameters, variables = load_from_zip_file(own, device="cpu")
        found, found_parameters, found_variables = load_from_zip_file(exported, device="cpu")
        assert data is not None
        assert found is not None
        assert found.keys() == data.keys()
        assert {key for key in data if not same(data[key], found[key])} <= OF_A_START
        assert same(found_parameters, parameters)
        assert same(found_variables, variables)
        weights.append(parameters["policy"])
    assert not same(weights[0], weights[-1])  # another step is another file

    env = MODELS[name]().env if name == "dqn-her" else None  # which SB3 does not load without one
    assert same(actions(loaded(training.model, exported, env)), actions(loaded(training.model, own, env)))
    after, expected = (trained_on(training, name, file) for file in (exported, own))
    assert same(after, expected)
    assert not same(after["policy"], weights[-1])  # the steps have changed something


def schedule(remaining: float) -> float:
    return 1e-3 * remaining


def test_the_last_value_of_a_function_of_the_script_stands_for_it(tmp_path: Path) -> None:
    model: Any = trainings.ppo(learning_rate=schedule, clip_range=lambda remaining: 0.1 + 0.1 * remaining)
    training = Training(tmp_path, model, 256, 40)
    answer = training.export(0)
    assert answer.code == 2
    said = " ".join(answer.err.split())
    assert "clip_range is a function of the script" in said
    assert "Take a later checkpoint" in said

    step = training.steps[-2]
    own, exported = training.files(step)
    data, parameters, _ = load_from_zip_file(own, device="cpu")
    assert data is not None
    assert parameters is not None
    optimizer: Any = parameters["policy.optimizer"]
    answer = training.export(step)
    left = {one["what"]: one["why"] for one in answer.json["left"]}
    rate = optimizer["param_groups"][0]["lr"]
    assert 0 < rate < 1e-3
    assert "schedule" in left["learning_rate"]
    assert str(rate) in left["learning_rate"]
    assert "custom_objects={'learning_rate': …, 'clip_range': …}" in answer.json["load"][0]
    assert "lr_schedule" not in left
    assert left["learning_rate"].count(str(rate)) == 1
    assert left["learning_rate"].endswith(" stands for it")

    found: Any = loaded(model, exported)
    progress = data["_current_progress_remaining"]
    assert found.learning_rate == found.lr_schedule(0.5) == rate
    assert found.clip_range(0.9) == pytest.approx(0.1 + 0.1 * progress)
    functions = {"learning_rate": schedule, "clip_range": model.clip_range}
    found = PPO.load(exported, device="cpu", custom_objects=functions)
    assert [found.lr_schedule(0.7), found.clip_range(0.7)] == [schedule(0.7), model.clip_range(0.7)]
    assert same(found.get_parameters(), loaded(model, own).get_parameters())


def test_a_rate_that_ran_below_zero_can_be_built_with(tmp_path: Path) -> None:
    model = trainings.ppo(learning_rate=schedule)
    training = Training(tmp_path, model, 100, 40)  # the last rollout leads past the end
    assert model.policy.optimizer.param_groups[0]["lr"] < 0
    _, exported = training.files(model.num_timesteps)
    left = {one["what"]: one["why"] for one in training.export().json["left"]}
    assert "0.0 stands for it, and what it gave last is -" in left["learning_rate"]
    assert left["learning_rate"].endswith("; to train on, give it: with 0 nothing is learnt")
    assert loaded(model, exported).lr_schedule(1.0) == 0.0


def test_schedules_of_sb3_are_kept(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="deprecated"):
        function = get_linear_fn(0.3, 0.1, 0.5)
    model = trainings.ppo(learning_rate=LinearSchedule(1e-3, 1e-4, 0.8), clip_range=function)
    training = Training(tmp_path, model, 64, 40)
    own, exported = (loaded(model, file) for file in training.files(0))
    for progress in (1.0, 0.9, 0.6, 0.5, 0.1, 0.0):
        assert exported.lr_schedule(progress) == own.lr_schedule(progress) == model.lr_schedule(progress)
        assert exported.clip_range(progress) == own.clip_range(progress) == function(progress)
    assert not {"learning_rate", "clip_range"} & {one["what"] for one in training.export().json["left"]}


@pytest.fixture
def zoo(monkeypatch: pytest.MonkeyPatch) -> Any:
    """RL Zoo's functions. Its import puts a TimeLimit of its own into Gymnasium, which no other test must see."""
    for module in (gymnasium.wrappers, gymnasium.wrappers.common, gymnasium.envs.registration):
        monkeypatch.setattr(module, "TimeLimit", gymnasium.wrappers.TimeLimit, raising=False)
    return pytest.importorskip("rl_zoo3.utils")


def test_the_schedule_of_the_zoo_is_kept(zoo: Any, tmp_path: Path) -> None:
    model = trainings.ppo(learning_rate=zoo.linear_schedule(1e-3), clip_range=zoo.linear_schedule("0.2"))
    training = Training(tmp_path, model, 64, 40)
    for step in (0, 64):
        own, exported = (load_from_zip_file(file, device="cpu")[0] for file in training.files(step))
        assert own is not None
        assert exported is not None
        assert {key for key in own if not same(own[key], exported[key])} <= OF_A_START


class OwnPPO(PPO):
    pass


class OwnPolicy(ActorCriticPolicy):
    pass


class OwnActivation(torch.nn.ReLU):
    pass


def own_class(cls: Any, policy: Any, **options: Any) -> Any:
    return cls(
        policy, make_vec_env("CartPole-v1", seed=0), n_steps=32, batch_size=32, device="cpu", **options
    )


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: own_class(OwnPPO, "MlpPolicy"), "OwnPPO, a class of the script's own"),
        (lambda: own_class(PPO, OwnPolicy), "holds policy_class"),
        (
            lambda: own_class(PPO, "MlpPolicy", policy_kwargs={"activation_fn": OwnActivation}),
            "holds policy_kwargs",
        ),
    ],
)
def test_a_class_of_the_script_is_refused(make: Callable[[], Any], says: str, tmp_path: Path) -> None:
    """Although it is imported: whether it is must not decide."""
    training = Training(tmp_path, make(), 40, 20)
    answer = training.export()
    said = " ".join(answer.err.split())
    assert answer.code == 2
    assert says in said
    assert "Own" in said
    assert "Call model.save() in the script" in said
    assert not (tmp_path / "exported.zip").exists()


class Notes:
    def __init__(self) -> None:
        self.text = "mine"


def test_what_the_script_has_added_is_kept_if_it_is_plain(tmp_path: Path) -> None:
    model: Any = trainings.ppo()
    model.tag, model.notes = ("plain", {"a": 1}), Notes()
    model.made = types.SimpleNamespace(at=datetime.date(2026, 1, 2), kind=torch.nn.ReLU, rate=np.float32(0.5))
    training = Training(tmp_path, model, 64, 40)
    own, exported = (load_from_zip_file(file, device="cpu")[0] for file in training.files(0))
    assert own is not None
    assert exported is not None
    assert exported["tag"] == own["tag"]
    assert same(exported["made"], own["made"])
    assert own.keys() - exported.keys() == {"notes"}
    left = {one["what"]: one["why"] for one in training.export().json["left"]}
    assert "Notes" in left["notes"]


def test_all_is_found_in_a_process_that_has_imported_nothing(tmp_path: Path) -> None:
    policy: dict[str, Any] = {"net_arch": [8], "optimizer_class": RMSpropTFLike}
    env = VecNormalize(make_vec_env("CartPole-v1", seed=0))
    training = Training(tmp_path, A2C("MlpPolicy", env, device="cpu", policy_kwargs=policy), 60, 20)
    words = [sys.executable, "-m", "unbroken", "export", "run", "--to", "model.zip"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "A2C of run/" in done.stdout
    assert "left     statistics of VecNormalize" in done.stdout
    assert "To load: stable_baselines3.A2C.load('model.zip')" in done.stdout
    own = tmp_path / f"own-{training.model.num_timesteps}.zip"
    assert same(*(load_from_zip_file(file, device="cpu")[1] for file in (tmp_path / "model.zip", own)))


def test_a_model_that_a_loop_tracks_is_found_and_must_be_whole(tmp_path: Path) -> None:
    model = trainings.sac()
    for job in ("whole", "part"):
        source = GraftSource({"agent": model}, policy_of_loaded(POLICY))
        with CheckpointEngine(source, Settings(root=tmp_path / job, job="run"), environment={}) as engine:
            engine.resume()
        model.actor.optimizer = None  # type: ignore[assignment]

    def export(job: str) -> Answer:
        return unbroken("export", job, "--to", f"{job}.zip", cwd=tmp_path)

    assert export("whole").code == 0
    assert same(loaded(model, tmp_path / "whole.zip").policy.state_dict(), model.policy.state_dict())
    answer = export("part")
    assert answer.code == 2
    assert "holds no actor.optimizer of the model" in " ".join(answer.err.split())
    assert not (tmp_path / "part.zip").exists()


def test_what_was_trained_on_a_device_that_is_not_here_is_read(tmp_path: Path) -> None:
    training = Training(tmp_path, MODELS["ars"](), 1, 99)
    repository = Repository.open(tmp_path / "run", "rl_model")
    saved = repository.load(repository.commits()[0])
    model: Any = saved.components["training_state"].roots["model"]
    tensor = model.a["weights"].v.v
    assert "device" not in tensor
    tensor["device"] = "cuda:99"
    weights = read_model(saved, place_of_model(saved), {}).data["weights"]
    assert str(weights.device) == "cpu"
    assert torch.equal(weights, training.model.weights)


@pytest.mark.parametrize("package", ["stable_baselines3", "sb3_contrib"])
def test_a_package_that_is_not_installed_is_named(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(tmp_path, MODELS["ars"](), 1, 99)
    monkeypatch.setitem(sys.modules, package, None)
    answer = training.export(0)
    assert answer.code == 2
    assert f"pip install {package.replace('_', '-')}" in answer.err


def test_the_name_of_the_file(tmp_path: Path) -> None:
    Training(tmp_path, trainings.dqn(), 60, 50)

    def export(*words: str) -> Answer:
        return unbroken("export", "run", "--to", *words, cwd=tmp_path)

    assert export("sb3-zip", "model").code == 0  # as SB3 names it, whose `load("model")` finds it
    assert DQN.load(tmp_path / "model", device="cpu").num_timesteps == 60
    before = (tmp_path / "model.zip").read_bytes()
    for words, says in (
        (("model.zip",), "model.zip exists."),
        (("sb3-zip",), "Write: unbroken export run --to sb3-zip FILE.zip"),
        (("other.zip", "place"), "Leave out place."),
        (("other.zip", "--component", "replay_buffer"), "Leave out --component replay_buffer."),
        (("nowhere/other.zip",), "The folder nowhere does not exist."),
    ):
        answer = export(*words)
        assert answer.code == 2
        assert says in " ".join(answer.err.split())
    assert (tmp_path / "model.zip").read_bytes() == before
    answer = export("model.zip", "--force")
    assert answer.code == 0
    assert "left     the replay buffer" in answer.out
