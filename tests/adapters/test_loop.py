"""Hand-written loops: killed for real at any step, in fresh processes, and compared leaf by leaf."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import unbroken
from unbroken.distributed import World
from unbroken.errors import ConfigError, StateMismatch
from unbroken.repo.repository import Repository
from unbroken.state.diff import LeafDifference, compare
from unbroken.state.snapshot import Promise, Snapshot
from unbroken.types import Fidelity

from .walk import Walk

SCRIPT = Path(__file__).parent / "loop_script.py"
ARGUMENTS = ("--timesteps", "1200", "--save-every", "400")


def run_example(
    root: Path, *, kill_at: int = -1, settled: bool = False, cold: str = "-", expect: int = 0
) -> str:
    when = f"{kill_at},settled" if settled else str(kill_at)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), when, cold, "--save-path", str(root), *ARGUMENTS],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": str(abs(kill_at))},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == expect, done.stderr
    return done.stderr


def final_state(root: Path) -> Snapshot:
    repository = Repository.open(root, root.name)
    commit = repository.commits()[0]
    assert commit.position == "end"
    return repository.load(commit)


def differing(root: Path, other: Path) -> list[LeafDifference]:
    return compare(final_state(root), final_state(other))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("undisturbed") / "dqn"
    run_example(root)
    return root


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed at step 850 and has not been started again. Its newest checkpoint is of step
    800: between two copies to the target network, which 750 and 1000 would have hidden."""
    pytest.importorskip("torch")
    root = tmp_path_factory.mktemp("killed") / "dqn"
    run_example(root, kill_at=850, settled=True, expect=-9)
    return root


def test_killed_three_times_it_ends_as_if_it_had_never_stopped(undisturbed: Path, tmp_path: Path) -> None:
    root = tmp_path / "dqn"
    run_example(root, kill_at=250, expect=-9)  # nothing but the start is saved yet
    assert "goes on at step 0" in run_example(root, kill_at=401, expect=-9)  # a save may be under way
    told = run_example(root, kill_at=1199, expect=-9)  # the very last step
    assert "goes on at step" in told
    assert "killed or crashed" in told
    assert "exact: all 7 parts" in run_example(root)
    assert differing(undisturbed, root) == []


def test_killed_one_step_after_a_save_that_a_process_writes_it_goes_on_from_there(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNBROKEN_WRITER", "process")
    root = tmp_path / "dqn"
    run_example(root, kill_at=401, expect=-9)
    told = run_example(root)
    assert "goes on at step 400" in told
    assert "exact: all 7 parts" in told
    assert differing(undisturbed, root) == []


@pytest.mark.parametrize("cold", ["buffer", "optimizer", "generators"])
def test_with_one_part_left_cold_it_would_end_otherwise(
    undisturbed: Path, killed: Path, tmp_path: Path, cold: str
) -> None:
    root = tmp_path / "dqn"
    shutil.copytree(killed, root)
    run_example(root, cold=cold)
    places = {difference.place for difference in differing(undisturbed, root)}
    assert any(place.startswith("policy/") for place in places)


def test_a_finished_loop_that_is_given_more_steps_says_both_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def counted(total: int) -> float:
        weights = np.zeros(1)
        run = unbroken.Run(tmp_path / "run", every=100)
        run.track(weights=weights)
        for _ in run.steps(total):
            weights += 1
        return float(weights[0])

    assert counted(10) == 10
    assert counted(17) == 17
    assert "had finished at step 10, goes on to 17 from the newest checkpoint" in capsys.readouterr().err
    assert counted(17) == 17
    assert "had finished at step 17 from the newest checkpoint" in capsys.readouterr().err


def test_a_loop_that_was_left_by_stop_goes_on_to_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        run = unbroken.Run(tmp_path / "run", every=100)
        run.track(weights=np.zeros(2))
        for step in run.steps(10):
            if step == 4:
                run.stop()
    assert "had finished at step 5 from the newest checkpoint" in capsys.readouterr().err


def test_a_finished_run_started_again_says_so_and_changes_nothing(undisturbed: Path) -> None:
    before = Repository.open(undisturbed, "dqn").commits()
    assert "had finished at step 1,200" in run_example(undisturbed)
    assert Repository.open(undisturbed, "dqn").commits() == before


@pytest.mark.parametrize("leave_at", [0, 1, 4, 5, 6, 12, 19])
def test_what_the_loop_carries_comes_back(tmp_path: Path, leave_at: int) -> None:
    whole = Walk(tmp_path / "whole")
    whole.go(20)
    left = Walk(tmp_path / "left")
    left.go(20, leave_at=leave_at)
    left.run.close()
    resumed = Walk(tmp_path / "left")
    resumed.go(20)
    assert resumed.state() == whole.state()


def test_a_longer_run_goes_on_from_the_end_of_a_shorter_one(tmp_path: Path) -> None:
    whole = Walk(tmp_path / "whole")
    whole.go(20)
    Walk(tmp_path / "longer").go(13)
    longer = Walk(tmp_path / "longer")
    longer.go(20)
    assert longer.state() == whole.state()


def test_two_loops_in_one_script(tmp_path: Path) -> None:
    whole = Walk(tmp_path / "whole")
    whole.go(12)
    whole.position *= 2
    whole.go(9)
    for leave in (7, 12, 20):
        left = Walk(tmp_path / "left")
        left.go(12, leave_at=leave)
        if leave >= 12:
            left.position *= 2
            left.go(9, leave_at=leave - 12)
        left.run.close()
    resumed = Walk(tmp_path / "left")
    resumed.go(12)
    resumed.position *= 2
    resumed.go(9)
    assert resumed.state() == whole.state()


def test_stop_ends_a_loop_for_good(tmp_path: Path) -> None:
    seen = list[int]()
    run = unbroken.Run(tmp_path / "run", quiet=True)
    for _ in range(2):
        run = unbroken.Run(tmp_path / "run", quiet=True)
        run.vars.x = 0
        run.scratch(seen)
        for step in run.steps(100):
            seen.append(step)
            if step == 3:
                run.stop()
    assert seen == [0, 1, 2, 3]
    assert run.report is not None
    assert run.report.finished


def test_save_asks_for_a_checkpoint_at_the_next_step(tmp_path: Path) -> None:
    run = unbroken.Run(tmp_path / "run", quiet=True)
    with pytest.raises(ConfigError, match="has not begun"):
        run.save()
    for step in run.steps(10):
        if step == 2:
            run.save()
    assert [c.step for c in Repository.open(tmp_path / "run", "run").commits()] == [10, 3, 0]


FUNCTIONS = """
import sys, unbroken
class Agent:
    def __init__(self):
        self.known = lambda word: word in {"left", "right", "up", "down"}
        self.steps = 0
agent = Agent()
run = unbroken.Run(sys.argv[1], every=5, quiet=True, strict=True)
run.track(agent=agent)
for step in run.steps(int(sys.argv[2])):
    agent.steps += agent.known("left")
print(agent.steps, run.report.step, list(run.report.changes))
"""


def test_a_function_is_the_same_whatever_the_seed_of_the_hashes(tmp_path: Path) -> None:
    told: list[str] = []
    for seed, steps in ((1, 7), (2, 9), (3, 12)):
        done = subprocess.run(
            [sys.executable, "-c", FUNCTIONS, str(tmp_path / "run"), str(steps)],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        told.append(done.stdout.strip())
    assert told == ["7 0 []", "9 7 []", "12 9 []"]


class Counter:
    """Holds what nobody can see from outside, and says so."""

    def __init__(self) -> None:
        box = [0]
        self.tick: Callable[[], None] = lambda: box.__setitem__(0, box[0] + 1)
        self.capture: Callable[[], dict[str, Any]] = lambda: {"count": box[0], "seen": np.arange(box[0])}
        self.restore: Callable[[dict[str, Any]], None] = lambda state: box.__setitem__(0, state["count"])


class Legacy:
    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value = 0

    def add(self) -> None:
        self._value += 1

    def state_dict(self) -> dict[str, int]:
        return {"value": self._value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._value = state["value"]


def test_objects_with_a_state_of_their_own_are_asked_for_it(tmp_path: Path) -> None:
    counter, legacy = Counter(), Legacy()
    for limit in (8, 15):
        counter, legacy = Counter(), Legacy()
        run = unbroken.Run(tmp_path / "run", every=5, quiet=True)
        run.track(counter=counter, legacy=legacy)
        for step in run.steps(15):
            if step == limit:
                break
            counter.tick()
            legacy.add()
        run.close()
    assert counter.capture()["count"] == 15
    assert legacy.state_dict() == {"value": 15}


def test_torch_schedulers_and_optimizers_come_back_in_place(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    finals: list[Any] = []
    net: Any = None
    scheduler: Any = None
    for root, limits in (("whole", (9,)), ("left", (7, 9))):
        for limit in limits:
            torch.manual_seed(0)
            net = torch.nn.Linear(3, 1)
            optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
            weight = net.weight
            run = unbroken.Run(tmp_path / root, every=3, quiet=True)
            run.track(policy=net, optimizer=optimizer, scheduler=scheduler)
            for step in run.steps(9):
                if step == limit:
                    break
                loss = net(torch.randn(8, 3)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
            run.close()
            assert net.weight is weight
        finals.append((net.weight.detach().numpy().tobytes(), scheduler.get_last_lr()))
    assert finals[0] == finals[1]
    assert finals[0][1] == [0.1 * 0.5**4]


def test_what_the_loop_would_lose_is_named_once(tmp_path: Path) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    run = unbroken.Run(tmp_path / "run", quiet=True)
    tracked = np.zeros(3)
    run.track(tracked=tracked)
    run.vars.kept = kept = np.ones(2)
    forgotten, env, history = np.zeros(2), gymnasium.make("CartPole-v1"), deque([1])
    generator = np.random.default_rng()
    plain, window = 3, tracked[1:]
    with pytest.warns(unbroken.UntrackedWarning) as told:
        for _ in run.steps(1):
            pass
    assert (plain, len(window), len(kept), len(forgotten), len(history)) == (3, 2, 2, 2, 1)
    (warning,) = told
    assert "env, forgotten, generator, history" in str(warning.message)
    assert warning.filename == __file__
    assert env is not None
    assert isinstance(generator, np.random.Generator)


def bar(steps: Iterable[int]) -> Iterator[int]:
    """What a progress bar does: its own frame is the one that iterates."""
    yield from steps


def test_what_would_be_lost_is_named_under_a_progress_bar_too(tmp_path: Path) -> None:
    run = unbroken.Run(tmp_path / "run", quiet=True)
    forgotten = np.zeros(2)
    with pytest.warns(unbroken.UntrackedWarning, match="forgotten") as told:
        for _ in bar(run.steps(1)):
            pass
    assert len(forgotten) == 2
    assert [warning.filename for warning in told] == [__file__]


def test_a_loop_that_forgets_nothing_warns_of_nothing(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    Walk(tmp_path / "run").go(3)
    assert not [w for w in recwarn if w.category is unbroken.UntrackedWarning]


@pytest.mark.parametrize("value", [1, 2.5, "text", None, (1, 2), b"raw"])
def test_what_cannot_be_changed_in_place_cannot_be_tracked(tmp_path: Path, value: object) -> None:
    with pytest.raises(ConfigError, match=r"run\.vars"):
        unbroken.Run(tmp_path).track(x=value)


def test_names_are_unique_and_some_are_taken(tmp_path: Path) -> None:
    run = unbroken.Run(tmp_path)
    run.track(a=[])
    for name in ("a", "vars", "generators", "counters"):
        with pytest.raises(ConfigError, match=name):
            run.track(**{name: []})


def test_a_part_that_is_tracked_no_longer_is_refused(tmp_path: Path) -> None:
    walk = Walk(tmp_path / "run")
    walk.go(20, leave_at=7)
    walk.run.close()
    run = unbroken.Run(tmp_path / "run", quiet=True)
    with pytest.raises(StateMismatch, match="position: was there and is gone"):
        next(iter(run.steps(20)))


def test_tracking_comes_before_the_loop(tmp_path: Path) -> None:
    run = unbroken.Run(tmp_path / "run", quiet=True)
    for _ in run.steps(1):
        with pytest.raises(ConfigError, match="before the loop"):
            run.track(late=[])


def test_a_wish_of_which_other_ranks_do_not_hear_is_refused(tmp_path: Path) -> None:
    alone = unbroken.Run(tmp_path, every=5, world=World(rank=0, size=1), quiet=True)
    with pytest.raises(ConfigError, match="has not begun"):
        alone.save()
    run = unbroken.Run(tmp_path, every=5, world=World(rank=0, size=2), quiet=True)
    with pytest.raises(ConfigError, match="do not hear of a wish"):
        run.save()


@pytest.mark.parametrize("total", [-1, 2.5, True, "10", None])
def test_the_number_of_steps_is_a_number(tmp_path: Path, total: Any) -> None:
    with pytest.raises(ConfigError):
        unbroken.Run(tmp_path).steps(total)


@pytest.mark.parametrize("wrong", [{"every": 0}, {"every": -1}, {"keep_last": 0}, {"resume": "perhaps"}])
def test_bad_settings_are_refused_at_once(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        unbroken.Run(tmp_path / "run", **wrong)
    assert not (tmp_path / "run").exists()


def test_a_variable_that_was_never_set_says_so(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match=r"run\.vars\.obs was never set"):
        print(unbroken.Run(tmp_path).vars.obs)


def test_another_shape_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    walk = Walk(tmp_path / "run")
    walk.go(20, leave_at=7)
    walk.run.close()
    run = unbroken.Run(tmp_path / "run", quiet=True)
    position = np.zeros(5)
    run.track(position=position)
    with pytest.raises(StateMismatch, match=r"position: \(4,\) -> \(5,\)"):
        next(iter(run.steps(20)))
    assert not position.any()


@pytest.mark.parametrize(
    ("name", "vectors", "fidelity", "reason"),
    [
        ("Honest", 0, Fidelity.EXACT, ""),
        ("Honest", 2, Fidelity.EXACT, ""),
        ("OnTheModule", 0, Fidelity.APPROXIMATE, "out of reach"),
        ("Clocked", 2, Fidelity.APPROXIMATE, "clock"),
    ],
)
def test_an_environment_that_nobody_knows_is_put_to_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, vectors: int, fidelity: Fidelity, reason: str
) -> None:
    meet_the_liars(monkeypatch)
    env: Any = gym.make_vec(f"{name}-v0", vectors) if vectors else gym.make(f"{name}-v0")
    promise = promised(tmp_path / "run", env)
    assert promise.fidelity is fidelity
    assert reason in promise.reason


def meet_the_liars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "capture" / "worlds"))
    importlib.import_module("liars")


def promised(root: Path, *envs: Any) -> Promise:
    """Return what a run with these environments promises of them."""
    run = unbroken.Run(root, quiet=True)
    for number, env in enumerate(envs):
        env.reset(seed=0)
        run.track(**{f"env_{number}": env})
    for _ in run.steps(1):
        pass
    assert run.report is not None
    return run.report.promises["env_states"]


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("names", [("Honest", "OnTheModule"), ("OnTheModule", "Honest")])
def test_a_vector_promises_no_more_than_its_worst_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str], wrapped: bool
) -> None:
    meet_the_liars(monkeypatch)
    env: Any = gym.vector.SyncVectorEnv([partial(gym.make, f"{name}-v0") for name in names])
    if wrapped:
        env = gym.wrappers.vector.RecordEpisodeStatistics(env)
    promise = promised(tmp_path / "run", env)
    assert promise.fidelity is Fidelity.APPROXIMATE
    assert "out of reach" in promise.reason


@pytest.mark.parametrize("first", [0, 1])
def test_of_several_environments_the_worst_is_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    meet_the_liars(monkeypatch)
    envs: list[Any] = [gym.make("Clocked-v0"), gym.make("CartPole-v1")]
    promise = promised(tmp_path / "run", *(envs if not first else reversed(envs)))
    assert promise.fidelity is Fidelity.APPROXIMATE
    assert "clock" in promise.reason


def test_a_loop_after_one_that_was_left_by_break_is_refused(tmp_path: Path) -> None:
    run = unbroken.Run(tmp_path / "run", quiet=True)
    for step in run.steps(10):
        if step == 3:
            break
    with pytest.raises(ConfigError, match=r"run\.stop\(\)"):
        next(iter(run.steps(10)))


GATHERING = """
import os, signal, sys
import torch, unbroken
torch.manual_seed(1)
net = torch.nn.Linear(40, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
run = unbroken.Run(sys.argv[1], every=7, quiet=True)
run.track(net=net, opt=opt)
for step in run.steps(40):
    if step == int(sys.argv[2]):
        run.wait()
        os.kill(os.getpid(), signal.SIGKILL)
    net(torch.randn(8, 40)).pow(2).mean().backward()
    if step % 10 == 9:
        opt.step()
        opt.zero_grad()
print(net.weight.double().sum().item())
"""


def test_gradients_that_are_gathered_over_iterations_come_back(tmp_path: Path) -> None:
    def go(root: str, kill_at: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", GATHERING, str(tmp_path / root), str(kill_at)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
            capture_output=True,
            text=True,
        )

    undisturbed = go("u", -1)
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert go("r", 16).returncode == -9
    resumed = go("r", -1)
    assert resumed.stdout == undisturbed.stdout, resumed.stderr
