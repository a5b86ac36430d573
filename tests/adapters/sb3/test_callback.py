"""What a person sees of the callback: arguments, segments, a finished run, files, what stands beside it."""

from __future__ import annotations

import csv
import importlib
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    EvalCallback,
    EveryNTimesteps,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

from unbroken.engine.report import ResumeReport
from unbroken.engine.settings import Settings
from unbroken.errors import ConfigError, RunBusy, SaveFailed
from unbroken.repo.repository import Repository
from unbroken.sb3 import CheckpointCallback, Every
from unbroken.types import Fidelity

from .trainings import OtherNoise, a2c, dqn, ppo, small, td3_in_eights, weights


class Cut(Exception):
    pass


class CutAt(BaseCallback):
    """Ends a training at a step, after what is being saved was saved."""

    def __init__(self, at: int, ours: CheckpointCallback) -> None:
        super().__init__()
        self.at = at
        self.ours = ours

    def _on_step(self) -> bool:
        if self.n_calls == self.at:
            raise Cut
        session = self.ours._session
        if session is not None and session._engine is not None:
            session._engine._writer.wait()
        return True


class SaveAt(BaseCallback):
    """Asks for a save at a step."""

    def __init__(self, at: int, ours: CheckpointCallback) -> None:
        super().__init__()
        self.at = at
        self.ours = ours

    def _on_step(self) -> bool:
        session = self.ours._session
        if self.n_calls == self.at and session is not None and session._engine is not None:
            session._engine.request_save("the test")
        return True


def commits(root: Path, job: str = "rl_model") -> list[tuple[int, int, str]]:
    found = Repository.open(root, job).commits()
    return [(commit.segment, commit.step, commit.position) for commit in reversed(found)]


@pytest.mark.parametrize("bad", [0, -1, 2.5, True, "10"])
def test_save_freq_is_a_whole_number_of_calls(bad: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="save_freq"):
        CheckpointCallback(bad, tmp_path)


def test_save_freq_and_every_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="every"):
        CheckpointCallback(10, tmp_path, every=Every(steps=10))


def test_a_root_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNBROKEN_ROOT", raising=False)
    with pytest.raises(ConfigError, match="save_path"):
        CheckpointCallback(10)


@pytest.mark.parametrize("path", ["ftp://host/runs", "x" * 256, "a\0b", "~nobody-of-this-name/x"])
def test_a_place_that_cannot_be_is_refused_at_once_and_in_the_users_words(path: str) -> None:
    with pytest.raises(ConfigError, match="save_path"):
        CheckpointCallback(10, path)


def test_a_name_with_spaces_is_taken_and_the_home_directory_is_said_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    ppo().learn(64, callback=CheckpointCallback(1000, "~/runs", "my model"))
    assert f"checkpoints in {tmp_path}/runs/my model" in capsys.readouterr().err
    assert commits(tmp_path / "runs", "my model")[-1] == (0, 64, "end")


def test_settings_come_whole_or_one_by_one(tmp_path: Path) -> None:
    settings = Settings(root=tmp_path, job="run", keep_last=1)
    mixed: list[dict[str, Any]] = [
        {"save_freq": 10}, {"save_path": tmp_path}, {"resume": "must"}, {"keep_last": 3}, {"every": 10},
    ]  # fmt: skip
    for options in mixed:
        with pytest.raises(ConfigError, match=f"config= .*{next(iter(options))}"):
            CheckpointCallback(**options, config=settings)
    ppo().learn(64, callback=CheckpointCallback(config=settings, verbose=1))
    assert commits(tmp_path, "run") == [(0, 64, "end")]


class OtherLoop(BaseAlgorithm):
    """An algorithm with a loop that nobody knows."""

    def __init__(self) -> None:
        super().__init__(ActorCriticPolicy, make_vec_env("CartPole-v1", seed=0), 0.1)

    def _setup_model(self) -> None: ...

    def learn(self, total_timesteps: int, callback: Any = None, *args: Any, **kwargs: Any) -> Any:
        self._setup_learn(total_timesteps, callback)


def test_an_algorithm_with_another_loop_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="OtherLoop") as raised:
        OtherLoop().learn(100, callback=CheckpointCallback(10, tmp_path))
    assert "unbroken.Run" in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_save_freq_counts_calls_and_is_said_in_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = CheckpointCallback(20, tmp_path, "run", keep_last=100)
    ppo().learn(128, callback=[ours, CutAt(10_000, ours)])
    (line, *_) = capsys.readouterr().err.splitlines()
    assert "save_freq=20 is every 40 steps of 2 environments" in line
    assert commits(tmp_path, "run") == [
        (0, 0, "start"), (0, 40, "step"), (0, 80, "step"), (0, 120, "step"), (0, 128, "end"),
    ]  # fmt: skip


def test_below_an_event_a_call_is_an_event(tmp_path: Path) -> None:
    ours = CheckpointCallback(2, tmp_path, keep_last=100)
    ppo().learn(128, callback=[EveryNTimesteps(24, ours), CutAt(10_000, ours)])
    assert [step for _, step, _ in commits(tmp_path)] == [0, 48, 96, 128]


def test_below_an_event_the_events_before_the_kill_count_on(tmp_path: Path) -> None:
    def train(root: Path, cut: int) -> None:
        ours = CheckpointCallback(3, root, keep_last=100)
        ppo().learn(256, callback=[EveryNTimesteps(10, ours), SaveAt(45, ours), CutAt(cut, ours)])

    train(tmp_path / "U", 10_000)
    forget()
    with pytest.raises(Cut):
        train(tmp_path / "R", 50)
    train(tmp_path / "R", 10_000)
    adopted = (0, 92, "step")  # the changed CutAt is saved at once
    assert [commit for commit in commits(tmp_path / "R") if commit != adopted] == commits(tmp_path / "U")


def test_the_environment_moves_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNBROKEN_ROOT", str(tmp_path / "elsewhere"))
    ppo().learn(64, callback=CheckpointCallback(1000, tmp_path / "here", "run"))
    assert commits(tmp_path / "elsewhere", "run")[-1] == (0, 64, "end")
    assert not (tmp_path / "here").exists()


def test_a_finished_run_says_so_and_returns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = ppo().learn(128, callback=CheckpointCallback(1000, tmp_path))
    before = commits(tmp_path)
    forget()
    again = CheckpointCallback(1000, tmp_path)
    second = ppo().learn(128, callback=again)
    told = capsys.readouterr().err
    assert "had finished at step 128 from" in told
    assert told.count("save_freq") == 1, "at the first start only"
    assert weights(first) == weights(second)
    assert commits(tmp_path) == before
    assert again.n_calls == 64, "as many as were made before, and none now"


def test_an_algorithm_and_a_monitor_whose_classes_are_made_in_a_function_go_on(tmp_path: Path) -> None:
    def build() -> PPO:
        class MyMonitor(Monitor[Any, Any]):
            pass

        class Mine(PPO):
            pass

        env = DummyVecEnv([lambda: MyMonitor(gymnasium.make("CartPole-v1"))])
        return Mine("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=1, **small())

    undisturbed = build().learn(256)
    first, again = (CheckpointCallback(40, tmp_path) for _ in range(2))
    with pytest.raises(Cut):
        build().learn(256, callback=[first, CutAt(90, first)])
    resumed = build().learn(256, callback=[again, CutAt(10_000, again)])
    assert again.report is not None and again.report.step == 80
    assert weights(resumed) == weights(undisturbed)


def forget() -> None:
    """Do as if the process were another one."""
    from unbroken.adapters.sb3 import session

    session._finished.clear()


def script(root: Path, cut: int = 0) -> PPO:
    """A script that trains three times."""
    model = ppo()
    for part in range(3):
        ours = CheckpointCallback(9, root)
        more = [CutAt(cut % 100, ours)] if cut // 100 == part + 1 else []
        model.learn(128, callback=[ours, *more], reset_num_timesteps=part == 1)
        # Between the parts the script draws, too: what is skipped must leave the generators as it found them.
        model.action_space.sample()
    return model


@pytest.mark.parametrize("cut", [125, 210, 240, 340])
def test_several_trainings_of_one_script_are_segments(cut: int, tmp_path: Path) -> None:
    undisturbed = script(tmp_path / "U")
    forget()
    with pytest.raises(Cut):
        script(tmp_path / "R", cut)
    forget()
    resumed = script(tmp_path / "R")
    forget()
    assert weights(resumed) == weights(undisturbed)
    assert (undisturbed.num_timesteps, resumed.num_timesteps) == (256, 256)
    assert [(s, p) for s, _, p in commits(tmp_path / "R") if p == "end"] == [(i, "end") for i in range(3)]


def test_a_training_that_raised_is_taken_up_again_in_the_same_process(tmp_path: Path) -> None:
    undisturbed = ppo().learn(128)
    ours = CheckpointCallback(9, tmp_path)
    with pytest.raises(Cut):
        ppo().learn(128, callback=[ours, CutAt(40, ours)])
    resumed = ppo().learn(128, callback=CheckpointCallback(9, tmp_path))
    forget()
    assert weights(resumed) == weights(undisturbed)
    assert commits(tmp_path)[-1] == (0, 128, "end")


class BlockAt(BaseCallback):
    """Lets no save succeed from a step on."""

    def __init__(self, at: int, steps: str) -> None:
        super().__init__()
        self.at = at
        self.steps = steps

    def _on_step(self) -> bool:
        if self.n_calls == self.at:
            Path(self.steps).rename(f"{self.steps}-aside")
            Path(self.steps).write_text("in the way")
        return True


def test_a_training_whose_end_was_lost_is_ended_and_not_followed_by_another(tmp_path: Path) -> None:
    undisturbed = ppo().learn(128)
    model, steps = ppo(), tmp_path / "rl_model/steps"
    with pytest.raises(SaveFailed):
        model.learn(128, callback=[CheckpointCallback(1000, tmp_path), BlockAt(64, str(steps))])
    steps.unlink()
    Path(f"{steps}-aside").rename(steps)
    model.learn(128, callback=[CheckpointCallback(1000, tmp_path), BlockAt(-1, str(steps))])
    forget()
    assert weights(model) == weights(undisturbed)
    assert [entry for entry in commits(tmp_path) if entry[1]] == [(0, 128, "end")]


def test_two_trainings_of_one_run_at_a_time_are_refused(tmp_path: Path) -> None:
    writer = Repository.open(tmp_path, "rl_model", create=True).writer()
    try:
        with pytest.raises(RunBusy):
            ppo().learn(64, callback=CheckpointCallback(9, tmp_path))
    finally:
        writer.close()


def evaluation(folder: Path) -> EvalCallback:
    return EvalCallback(
        make_vec_env("CartPole-v1", seed=77), eval_freq=25, n_eval_episodes=1, best_model_save_path=str(folder), deterministic=False, verbose=0,
    )  # fmt: skip


@pytest.mark.parametrize("order", ["first", "last", "nested"])
def test_evaluations_go_on_and_the_best_model_is_saved(order: str, tmp_path: Path) -> None:
    def callbacks(root: Path, cut: int = 0) -> list[BaseCallback]:
        ours, evaluates = CheckpointCallback(11, root / "run"), evaluation(root)
        more: list[BaseCallback] = [CutAt(cut, ours)] if cut else []
        if order == "first":
            return [ours, evaluates, *more]
        if order == "last":
            return [evaluates, ours, *more]
        return [CallbackList([evaluates, CallbackList([ours])]), *more]

    undisturbed, expected = ppo(), callbacks(tmp_path / "U")
    undisturbed.learn(256, callback=expected)
    forget()
    with pytest.raises(Cut):
        ppo().learn(256, callback=callbacks(tmp_path / "R", 90))
    resumed, found = ppo(), callbacks(tmp_path / "R")
    resumed.learn(256, callback=found)
    forget()
    assert weights(resumed) == weights(undisturbed)
    saved = [PPO.load(tmp_path / name / "best_model.zip") for name in "UR"]
    assert weights(saved[0]) == weights(saved[1])
    assert not [name for name in vars(saved[1]) if name in ("collect_rollouts", "train")]


def monitored(folder: Path, *, vector: bool) -> PPO:
    if vector:
        env: Any = VecMonitor(make_vec_env("Pendulum-v1", n_envs=2, seed=0).unwrapped, str(folder / "all"))
    else:
        env = make_vec_env("CartPole-v1", n_envs=2, seed=0, monitor_dir=str(folder))
    return PPO("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=1, **small())


@pytest.mark.filterwarnings("ignore:The environment is already wrapped")
@pytest.mark.parametrize("vector", [False, True])
def test_the_files_of_monitors_come_back_as_they_were_at_the_checkpoint(vector: bool, tmp_path: Path) -> None:
    steps, cut = (1000, 480) if vector else (512, 200)
    models = [monitored(tmp_path / "U", vector=vector)]
    models[0].learn(steps, callback=CheckpointCallback(20, tmp_path / "run-U"))
    forget()
    ours = CheckpointCallback(20, tmp_path / "run")
    models.append(monitored(tmp_path / "R", vector=vector))
    with pytest.raises(Cut):
        models[1].learn(steps, callback=[ours, CutAt(cut, ours)])
    models.append(monitored(tmp_path / "R", vector=vector))
    models[2].learn(steps, callback=CheckpointCallback(20, tmp_path / "run"))
    for model in models:
        assert model.env is not None
        model.env.close()
    files = sorted(path.name for path in (tmp_path / "U").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "R").iterdir())
    for name in files:
        first, again = (rows(tmp_path / side / name) for side in "UR")
        assert [(row["r"], row["l"]) for row in first] == [(row["r"], row["l"]) for row in again]
        assert len(first) >= 2
        times = [float(row["t"]) for row in again]
        assert times == sorted(times)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        assert file.readline().startswith("#{")
        return list(csv.DictReader(file))


def test_tensorboard_goes_on_in_the_directory_of_the_first_start(tmp_path: Path) -> None:
    accumulator: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")

    def train(name: str, cut: int = 0) -> ResumeReport | None:
        ours = CheckpointCallback(10, tmp_path / f"run-{name}")
        model = ppo(tensorboard_log=str(tmp_path / name))
        model.learn(384, callback=[ours, *([CutAt(cut, ours)] if cut else [])], log_interval=1)
        model.logger.close()
        return ours.report

    train("U")
    forget()
    with pytest.raises(Cut):
        train("R", cut=111)
    report = train("R")
    assert report is not None
    assert [path.name for path in (tmp_path / "R").iterdir()] == ["PPO_1"]
    restarts: list[Any] = []
    curves, marks = [], []
    for name in "UR":
        events = accumulator.EventAccumulator(str(tmp_path / name / "PPO_1")).Reload()
        curves.append([(e.step, e.value) for e in events.Scalars("train/loss")])
        marks.append({tag for tag in events.Tags()["scalars"] if tag.startswith("unbroken/")})
        saved = {e.step for e in events.Scalars("unbroken/checkpoint")}
        assert {0, 384} <= saved
        restarts += events.Scalars("unbroken/restart") if "unbroken/restart" in marks[-1] else []
    assert curves[0] == curves[1]
    assert len(curves[0]) == 5
    assert marks[1] - marks[0] == {"unbroken/restart", "unbroken/steps_lost"}
    assert [(e.step, e.value) for e in restarts] == [(report.step, report.step)]


def test_a_kill_in_the_first_episode_and_before_the_first_step(tmp_path: Path) -> None:
    undisturbed = dqn().learn(200, callback=CheckpointCallback(1000, tmp_path / "U"))
    forget()
    for at in (1, 2, 4):
        ours = CheckpointCallback(1, tmp_path / f"R{at}")
        with pytest.raises(Cut):
            dqn().learn(200, callback=[ours, CutAt(at, ours)])
        resumed = dqn().learn(200, callback=CheckpointCallback(1000, tmp_path / f"R{at}"))
        forget()
        assert weights(resumed) == weights(undisturbed)


class Drift(gymnasium.Env[Any, Any]):
    """A user's own environment, without a spec."""

    observation_space = gymnasium.spaces.Box(-100, 100, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.at, self.left = self.np_random.normal(size=2), 80
        return self.at.astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at = 0.9 * self.at + 0.1 * action + 0.1 * self.np_random.normal(size=2)
        self.left -= 1
        return self.at.astype(np.float32), -float(np.abs(self.at).sum()), False, self.left == 0, {}


def test_an_environment_of_the_users_own_is_exact_from_its_first_episode_on(tmp_path: Path) -> None:
    def build() -> PPO:
        env = make_vec_env(Drift, n_envs=2, seed=0)
        return PPO("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=1, **small())

    undisturbed = build().learn(256)
    ours = CheckpointCallback(5, tmp_path)
    with pytest.raises(Cut):
        build().learn(256, callback=[ours, CutAt(48, ours)])
    assert ours.report is not None and ours.report.promises["env_states"].fidelity is Fidelity.EXACT
    resumed = build().learn(256, callback=CheckpointCallback(5, tmp_path))
    assert weights(resumed) == weights(undisturbed)


def test_the_metrics_of_a_training_stand_in_its_checkpoints(tmp_path: Path) -> None:
    a2c().learn(400, callback=CheckpointCallback(100, tmp_path))
    forget()
    repository = Repository.open(tmp_path, "rl_model")
    meta = repository.meta(repository.commits()[0])
    assert meta.metrics["rollout/ep_len_mean"] > 0
    assert meta.episodes > 0
    assert meta.counters["learning_rate"] == pytest.approx(7e-4)
    assert meta.env_seeds
    # A record of each save says the same, whether or not its checkpoint is still there.
    records = repository.saves()
    assert records[-1].metrics == meta.metrics
    assert [record.step for record in records if "train/value_loss" in record.metrics] == [200, 400]


def test_the_losses_of_a_training_stand_in_its_checkpoints_under_the_names_of_its_logger(
    tmp_path: Path,
) -> None:
    for name, model, losses in (
        ("dqn", dqn(), {"train/loss"}),
        (
            "ppo",
            ppo(),
            {"train/loss", "train/value_loss", "train/policy_gradient_loss", "train/entropy_loss"},
        ),
    ):
        model.learn(300, callback=CheckpointCallback(64, tmp_path, name))
        forget()
        newest = Repository.open(tmp_path, name).commits()[0]
        assert {metric for metric in newest.metrics if "loss" in metric} == losses
        assert newest.metrics["rollout/ep_rew_mean"] > 0


def test_an_ordinary_run_has_no_pickled_part(tmp_path: Path) -> None:
    a2c().learn(50, callback=CheckpointCallback(1000, tmp_path))
    forget()
    repository = Repository.open(tmp_path, "rl_model")
    assert repository.signature_valid(repository.commits()[0]) is None


def test_the_callback_leaves_threads_and_generators_alone(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    before = global_words()
    CheckpointCallback(10, tmp_path)
    assert global_words() == before
    ppo().learn(64, callback=CheckpointCallback(1000, tmp_path))
    forget()
    assert torch.get_num_threads() == threads


def global_words() -> bytes:
    state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - the global generator is what is asked
    words: bytes = state["state"]["key"].tobytes()
    return words


CONTRIB = {
    "RecurrentPPO": lambda contrib: contrib.RecurrentPPO(
        "MlpLstmPolicy", make_vec_env("CartPole-v1", n_envs=2, seed=0), n_steps=32, seed=0,
        policy_kwargs={"lstm_hidden_size": 8, "net_arch": [8]},
    ),
    "MaskablePPO": lambda contrib: contrib.MaskablePPO(
        "MlpPolicy", make_vec_env(masked(), n_envs=2, seed=0), n_steps=32, **small()
    ),
    "TRPO": lambda contrib: contrib.TRPO(
        "MlpPolicy", make_vec_env("CartPole-v1", n_envs=2, seed=0), n_steps=32, batch_size=32, **small()
    ),
    "QRDQN": lambda contrib: contrib.QRDQN(
        "MlpPolicy", make_vec_env("CartPole-v1", seed=0), learning_starts=40, buffer_size=90, **small()
    ),
    "TQC": lambda contrib: contrib.TQC(
        "MlpPolicy", make_vec_env("Pendulum-v1", seed=0), learning_starts=40, buffer_size=200, **small()
    ),
}  # fmt: skip


def masked() -> str:
    from sb3_contrib.common.envs import InvalidActionEnvDiscrete

    name = "unbroken/Masked-v0"
    if name not in gymnasium.registry:
        kwargs = {"dim": 8, "n_invalid_actions": 4}
        gymnasium.register(name, entry_point=InvalidActionEnvDiscrete, kwargs=kwargs)  # type: ignore[arg-type]
    return name


@pytest.mark.parametrize("name", CONTRIB)
def test_algorithms_of_sb3_contrib_work_without_knowing_them(name: str, tmp_path: Path) -> None:
    contrib = pytest.importorskip("sb3_contrib")
    steps, cut = (100, 70) if name in ("QRDQN", "TQC") else (256, 70)
    undisturbed = CONTRIB[name](contrib).learn(steps)
    ours = CheckpointCallback(15, tmp_path)
    with pytest.raises(Cut):
        CONTRIB[name](contrib).learn(steps, callback=[ours, CutAt(cut, ours)])
    resumed = CONTRIB[name](contrib).learn(steps, callback=CheckpointCallback(15, tmp_path))
    forget()
    assert weights(resumed) == weights(undisturbed)


@pytest.fixture(autouse=True)
def _another_process(tmp_path: Path) -> Any:
    yield
    forget()
    shutil.rmtree(tmp_path, ignore_errors=True)


class OwnRollouts(PPO):
    """Collects rollouts by code of its own, in which nobody knows a clean point."""

    def collect_rollouts(self, *args: Any, **kwargs: Any) -> bool:
        drawn = float(np.random.random())  # noqa: NPY002 - a state that only this call has
        more = super().collect_rollouts(*args, **kwargs)
        self.rollout_buffer.advantages *= 1 + drawn
        return more


def test_rollouts_that_are_collected_by_code_of_ones_own_are_saved_between_them(tmp_path: Path) -> None:
    def build() -> OwnRollouts:
        env = make_vec_env("CartPole-v1", n_envs=2, seed=0)
        return OwnRollouts("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=2, **small())

    undisturbed = build().learn(320)
    ours = CheckpointCallback(10, tmp_path, keep_last=100)
    with pytest.raises(Cut):
        build().learn(320, callback=[ours, CutAt(110, ours)])
    assert commits(tmp_path) == [(0, 0, "start"), (0, 64, "step"), (0, 128, "step"), (0, 192, "step")]
    forget()
    resumed = build().learn(320, callback=CheckpointCallback(10, tmp_path))
    assert weights(resumed) == weights(undisturbed)


@pytest.mark.parametrize(("at", "fidelity"), [(37, Fidelity.APPROXIMATE), (41, Fidelity.EXACT)])
def test_a_rollout_that_goes_on_with_a_noise_out_of_reach_comes_back_approximately(
    at: int, fidelity: Fidelity, tmp_path: Path
) -> None:
    """The other noise is on the model from step 36 on; the rollout ends with step 40."""
    ours = CheckpointCallback(at, tmp_path)
    with pytest.raises(Cut):
        td3_in_eights().learn(60, callback=[OtherNoise(), ours, CutAt(at + 2, ours)])
    again = CheckpointCallback(at, tmp_path)
    td3_in_eights().learn(60, callback=[OtherNoise(), again])
    assert again.report is not None
    promise = again.report.promises["training_state"]
    assert promise.fidelity is fidelity
    assert ("model/action_noise: was replaced" in promise.reason) is (fidelity is Fidelity.APPROXIMATE)
