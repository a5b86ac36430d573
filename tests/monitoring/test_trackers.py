"""Trackers of a training that is killed and goes on: one run of theirs, each step once, and marks of what happened."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import unbroken
from tests.engine.training import Training, engine_of, train
from tests.monitoring.prometheus import PATIENCE
from tests.monitoring.tracking import CHECKPOINT, PAUSE, TOTAL, Forked, finished, killed, until
from tests.monitoring.wandb_server import WandbServer
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.observer import Saved
from unbroken.engine.settings import Settings
from unbroken.engine.trackers.marks import Marks
from unbroken.engine.trackers.place import Place
from unbroken.engine.trackers.recorded import told
from unbroken.engine.trackers.trackers import Trackers
from unbroken.errors import ConfigError
from unbroken.repo.repository import Repository
from unbroken.trackers import TrackerWarning, mlflow_run, wandb_run

STEPS = list(range(TOTAL))
SAVED = [0, 10, 20, 30, 40]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The state that a training without any tracker comes to."""
    return finished("nothing", tmp_path_factory.mktemp("undisturbed") / "run")[0]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return what TensorBoard shows of a directory."""
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board: Any = module.EventAccumulator(str(folder))
    board.Reload()
    shown: dict[str, list[tuple[int, float]]] = {
        tag: [(event.step, event.value) for event in board.Scalars(tag)] for tag in board.Tags()["scalars"]
    }
    for tag in board.Tags()["tensors"]:  # texts
        shown[tag] = [(event.step, len(event.tensor_proto.string_val)) for event in board.Tensors(tag)]
    return shown


class Crash(Exception):
    pass


def test_a_loop_that_crashed_goes_on_in_its_curve_and_no_step_is_there_twice(tmp_path: Path) -> None:
    library = import_module("tensorboardX")
    for crashes in (True, False):
        # Without a suffix it names its file by whole seconds, and both loops may begin in one.
        writer: Any = library.SummaryWriter(str(tmp_path / "board"), filename_suffix=f".{2 - crashes}")
        with suppress(Crash), unbroken.Run(tmp_path / "run", every=10, quiet=True) as run:
            run.mark_in(writer)
            for step in run.steps(TOTAL):
                writer.add_scalar("loss", step, step)
                assert run.wait()
                if crashes and step == 25:
                    raise Crash
        writer.close()
    shown = scalars(tmp_path / "board")
    assert [step for step, _ in shown["loss"]] == STEPS
    assert [step for step, _ in shown["unbroken/checkpoint"]] == SAVED
    assert shown["unbroken/restart"] == [(CHECKPOINT, CHECKPOINT)]


@pytest.mark.exactness
def test_tensorboard_shows_each_step_once_and_the_restart(tmp_path: Path, undisturbed: str) -> None:
    root = tmp_path / "run"
    killed("board", root)
    before = [step for step, _ in scalars(tmp_path / "run-board")["loss"]]
    assert before == STEPS[: len(before)] and before[-1] > CHECKPOINT, "there is something to be voided"
    state, _ = finished("board", root)
    shown = scalars(tmp_path / "run-board")
    assert [step for step, _ in shown["loss"]] == STEPS
    assert shown["unbroken/checkpoint"] == [(step, step) for step in SAVED]
    assert shown["unbroken/restart"] == [(CHECKPOINT, CHECKPOINT)]
    assert [step for step, _ in shown["unbroken/restarts/text_summary"]] == [CHECKPOINT]
    assert state == undisturbed


def test_a_second_loop_of_a_script_leaves_the_curve_of_the_first(tmp_path: Path) -> None:
    writer: Any = import_module("tensorboardX").SummaryWriter(str(tmp_path / "board"))
    run = unbroken.Run(tmp_path / "run", every=10, quiet=True)
    run.mark_in(writer, first=lambda step: 1000 + step * 8)
    for loop in ("one", "two"):
        for step in run.steps(5):
            writer.add_scalar(loop, 0.0, 1000 + step * 8)
    writer.close()
    shown = scalars(tmp_path / "board")
    assert [step for step, _ in shown["one"]] == [step for step, _ in shown["two"]]
    assert [step for step, _ in shown["one"]] == [1000, 1008, 1016, 1024, 1032]
    assert (1040, 5) in shown["unbroken/checkpoint"]


@pytest.fixture
def server() -> Iterator[WandbServer]:
    assert find_spec("wandb") or os.environ.get("CI") != "true", "wandb is not installed"
    if not find_spec("wandb"):
        pytest.skip("wandb is not installed")
    server = WandbServer()
    yield server
    server.close()


def test_wandb_goes_on_in_one_run_that_has_each_step_once_and_marks(
    tmp_path: Path, server: WandbServer
) -> None:
    root, place = tmp_path / "run", tmp_path / "run-wandb"
    place.mkdir()
    online = {
        "WANDB_BASE_URL": server.url, "WANDB_API_KEY": "0" * 40, "WANDB_MODE": "online", "WANDB_SILENT": "true",
        "OTEL_SDK_DISABLED": "true", "WANDB_ERROR_REPORTING": "false",
    }  # fmt: skip

    def arrived() -> bool:
        """Whether all is there that the first process has sent: the row of the last step goes with the next one."""
        return len(next(iter(server.rows.values()), [])) == PAUSE

    with closing(Forked("wandb", variables=online)) as forked:
        forked.killed("wandb", root, lambda: until(arrived))
        state = forked.finished("wandb", root)
        assert state == forked.finished("nothing", tmp_path / "undisturbed")
    assert len(server.rows) == 1
    ((name, rows),) = server.rows.items()
    assert [row["_step"] for row in rows if "loss" in row] == STEPS
    assert [row["unbroken/checkpoint"] for row in rows if "unbroken/checkpoint" in row] == SAVED
    assert [row["unbroken/restart"] for row in rows if "unbroken/restart" in row] == [CHECKPOINT]
    assert "goes on at step 20" in server.summary[name]["unbroken/last_restart"]
    assert server.config[name]["unbroken"]["value"] == {"run": str(root / "run")}


@pytest.mark.exactness
def test_wandb_offline_has_one_id_in_each_folder(tmp_path: Path, undisturbed: str) -> None:
    assert find_spec("wandb"), "wandb is not installed"
    root, place = tmp_path / "run", tmp_path / "run-wandb"
    place.mkdir()
    offline = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    killed("wandb", root, variables=offline)
    state, _ = finished("wandb", root, variables=offline)
    assert state == undisturbed
    names = [folder.name.rpartition("-")[2] for folder in (place / "wandb").glob("offline-run-*")]
    known = wandb_run(root)
    assert known == {"id": names[0], "resume": "allow"} and names[0] == names[1]


class Refuses:
    """A place that can be told nothing."""

    kind = "wandb"
    title = "a tracker"
    identity = {"id": "abc"}

    def begin(self, *, step: int, segment: int) -> None:
        raise ConnectionError("nobody answers.")

    def began(self, where: str) -> None:
        raise ConnectionError("nobody answers.")

    def restarted(self, line: str, *, step: int, lost: int | None) -> None:
        raise ConnectionError("nobody answers.")

    def saved(self, *, step: int, seconds: float) -> None:
        raise ConnectionError("nobody answers.")

    def flush(self) -> None:
        raise ConnectionError("nobody answers.")


def test_a_tracker_that_fails_costs_no_checkpoint_and_is_heard_once(tmp_path: Path) -> None:
    training, engine = Training(), engine_of(Training(), tmp_path, keep_last=99)
    engine.tell(Refuses())
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        engine.resume()
        train(engine, training, start=0, until=35)
        engine.close()
    assert [warning.category for warning in heard] == [TrackerWarning]
    assert "cannot be marked in a tracker: nobody answers. Training" in str(heard[0].message)
    assert [commit.step for commit in Repository.open(tmp_path, "run").commits()] == [30, 20, 10, 0]


class Nameless(Refuses):
    """A place that cannot even say what it is."""

    @property
    def title(self) -> str:  # type: ignore[override]
        raise AttributeError("no name.")

    @property
    def identity(self) -> dict[str, str]:  # type: ignore[override]
        raise RuntimeError("no id.")


class Exits(Refuses):
    """A library that ends the process where it fails."""

    def begin(self, *, step: int, segment: int) -> None: ...

    def began(self, where: str) -> None:
        raise SystemExit("it gives up.")


@pytest.mark.parametrize(
    ("place", "why"),
    [(Nameless(), "the wandb run: no id"), (Exits(), "a tracker: it gives up")],
    ids=["nameless", "exits"],
)
def test_whatever_a_tracker_does_training_goes_on_and_it_is_heard(
    tmp_path: Path, place: Place, why: str
) -> None:
    training, engine = Training(), engine_of(Training(), tmp_path, keep_last=99)
    engine.tell(place)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        engine.resume()
        assert engine.wait_for_marks(PATIENCE)
        train(engine, training, start=0, until=35)
        engine.close()
    assert [str(one.message).partition(" Training")[0] for one in heard] == [
        f"Checkpoints and restarts cannot be marked in {why}."
    ]
    assert [commit.step for commit in Repository.open(tmp_path, "run").commits()] == [30, 20, 10, 0]


def test_a_writer_of_tensorboard_that_does_not_say_where_it_writes_is_marked_in(tmp_path: Path) -> None:
    library: Any = import_module("tensorboardX")

    class Wrapped:
        def __init__(self) -> None:
            inner = library.SummaryWriter(str(tmp_path / "board"))
            self.add_scalar, self.add_text, self.flush = inner.add_scalar, inner.add_text, inner.flush
            self.file_writer, self.close = inner.file_writer, inner.close

    writer = Wrapped()
    run = unbroken.Run(tmp_path / "run", every=10, quiet=True)
    run.mark_in(writer)
    for _ in run.steps(15):
        pass
    writer.close()
    assert [step for step, _ in scalars(tmp_path / "board")["unbroken/checkpoint"]] == [0, 10, 15]


class Notes(Refuses):
    """Keeps what it is told, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def begin(self, *, step: int, segment: int) -> None:
        self.told.append("begin")

    def began(self, where: str) -> None:
        self.told.append("began")

    def restarted(self, line: str, *, step: int, lost: int | None) -> None:
        self.told.append("restarted")

    def saved(self, *, step: int, seconds: float) -> None:
        self.told.append(f"saved {step}")

    def flush(self) -> None:
        self.told.append("flush")


def test_a_save_that_ends_while_the_start_is_marked_is_marked_after_it_and_none_is_lost(
    tmp_path: Path,
) -> None:
    """Each save falls at another moment of a start: before it, within the look at a place, and after it."""
    save = partial(Saved, blocked=0.0, durable=0.0, busy=0.0)
    settings = Settings(root=tmp_path, job="run")
    trackers = Trackers(settings, segment=0, speaks=True)

    class Meanwhile(Notes):
        def begin(self, *, step: int, segment: int) -> None:
            trackers.saved(save(step=1))
            super().begin(step=step, segment=segment)
            trackers.saved(save(step=2))

    first, second, engine = Meanwhile(), Notes(), engine_of(Training(), tmp_path / "other")
    report = engine.resume()
    engine.close()
    trackers.tell(first)
    trackers.tell(second)
    trackers.saved(save(step=0))
    trackers.started(report)
    trackers.saved(save(step=3))
    trackers.ended()
    marked = ["begin", "began", "saved 0", "saved 1", "saved 2", "saved 3", "flush"]
    assert first.told == second.told == marked


@pytest.mark.parametrize(("at_least", "lost"), [(False, 7), (True, None)], ids=["exact", "at least"])
def test_steps_lost_are_marked_where_it_is_known_how_many(
    tmp_path: Path, at_least: bool, lost: int | None
) -> None:
    class Counts(Notes):
        def restarted(self, line: str, *, step: int, lost: int | None) -> None:
            losses.append(lost)

    engine = engine_of(Training(), tmp_path)
    report = replace(
        engine.resume(), reasons=("the newest is damaged",), steps_lost=7, lost_at_least=at_least
    )
    engine.close()
    losses: list[int | None] = []
    marks = Marks("runs/ppo", failed=lambda title, error: None)
    marks.start([Counts()], report)
    assert losses == [lost]


def test_a_tracker_that_hangs_is_left_behind_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("unbroken.engine.trackers.trackers.LAST_SECONDS", 0.05)
    from threading import Event

    class Hangs(Refuses):
        def __init__(self) -> None:
            self.free = Event()

        def begin(self, *, step: int, segment: int) -> None: ...

        def began(self, where: str) -> None:
            self.free.wait(PATIENCE)

    place, engine = Hangs(), engine_of(Training(), tmp_path)
    engine.tell(place)
    engine.resume()
    engine.close()
    place.free.set()
    assert "a tracker: no answer within 0.05 seconds" in capfd.readouterr().err


def test_which_runs_of_trackers_it_is_goes_with_each_checkpoint_and_none_of_those_not_wanted(
    tmp_path: Path,
) -> None:
    class Quiet(Refuses):
        def begin(self, *, step: int, segment: int) -> None: ...
        def began(self, where: str) -> None: ...
        def saved(self, *, step: int, seconds: float) -> None: ...
        def flush(self) -> None: ...

    for job, wanted in (("all", ("wandb", "mlflow")), ("none", ("mlflow",))):
        engine = engine_of(Training(), tmp_path / job, trackers=wanted)
        engine.tell(Quiet())
        engine.resume()
        engine.close()
    found = [
        told(repository.meta(repository.commits()[0]).counters)
        for repository in (Repository.open(tmp_path / job, "run") for job in ("all", "none"))
    ]
    assert found == [{"wandb": {"id": "abc"}}, {}]
    assert wandb_run(tmp_path / "all", job="run") == {"id": "abc", "resume": "allow"}
    assert wandb_run(Settings(root=tmp_path / "all", job="run", resume="never")) == {}
    assert wandb_run(tmp_path / "none", job="run") == mlflow_run(tmp_path / "all", job="run") == {}
    assert wandb_run(tmp_path / "nowhere") == {}


def test_a_start_that_logs_to_another_run_of_a_tracker_says_how_to_go_on_in_the_first(tmp_path: Path) -> None:
    class Quiet(Refuses):
        def __init__(self, name: str) -> None:
            self.identity = {"id": name}

        def begin(self, *, step: int, segment: int) -> None: ...
        def began(self, where: str) -> None: ...
        def restarted(self, line: str, *, step: int, lost: int | None) -> None: ...
        def saved(self, *, step: int, seconds: float) -> None: ...
        def flush(self) -> None: ...

    def started(name: str) -> CheckpointEngine:
        engine = engine_of(Training(), tmp_path)
        engine.tell(Quiet(name))
        engine.resume()
        assert engine.wait_for_marks(60)
        engine._observer.speak()
        return engine

    started("first").close()
    # The thread that compares may be done before the start is over, or after it.
    with pytest.warns(
        TrackerWarning, match=r"logs to the wandb run second; up to step 0 .* first\. .*wandb_run"
    ):
        engine = started("second")
    engine.close()


@pytest.mark.parametrize("wrong", [{"wandb": 3}, {"wandb": ["id"]}, ["wandb"], "wandb", 7, None])
def test_what_a_checkpoint_tells_wrongly_of_trackers_is_as_if_it_said_nothing(wrong: object) -> None:
    assert told({"trackers": wrong}) == {}


def test_what_is_no_tracker_is_refused_in_a_sentence(tmp_path: Path) -> None:
    run = unbroken.Run(tmp_path / "run")
    with pytest.raises(ConfigError, match="A dict is no tracker that is known"):
        run.mark_in({})
    with pytest.raises(ConfigError, match="'aim' is no tracker"):
        Settings(root=tmp_path, trackers={"aim"})
    with pytest.raises(ConfigError, match="trackers must be a collection of names"):
        Settings(root=tmp_path, trackers="wandb")
    assert Settings(root=tmp_path).overridden({"UNBROKEN_TRACKERS": "none"}).trackers == ()
    assert Settings(root=tmp_path).overridden({"UNBROKEN_TRACKERS": "mlflow"}).trackers == ("mlflow",)
