"""A real Prometheus scrapes real trainings: each alert fires for the run whose condition is true, and for no other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.runs import abandon
from tests.engine.training import Training, source_of
from tests.monitoring.prometheus import OFFSET, Prometheus, serving
from tests.monitoring.test_rules import ALERTS
from tests.ports import free_port
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.monitoring.monitor import Monitor, MonitoringWarning
from unbroken.engine.monitoring.target import Monitoring
from unbroken.engine.observer import Several
from unbroken.engine.schedule import Every
from unbroken.engine.settings import Settings
from unbroken.errors import SaveFailed, UnsupportedFormat
from unbroken.format import layout
from unbroken.format.records import FormatRecord
from unbroken.repo.repository import Repository
from unbroken.repo.seal import seal
from unbroken.state.snapshot import Promise
from unbroken.types import Fidelity

ROOT = Path(__file__).parents[2]


class Scene:
    """Runs, each with its port, and what each does over while Prometheus looks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports: list[int] = []
        self.turns: list[Callable[[], object]] = []
        self.open = ExitStack()

    def engine(
        self, job: str, *, width: int = 4, promises: dict[str, Promise] | None = None, served: bool = True,
        port: int | None = None, textfile: Path | str = "", **options: Any,
    ) -> tuple[CheckpointEngine, Training]:  # fmt: skip
        """Make an engine of a run, without resuming it."""
        training = Training(width=width)
        source = source_of(training)
        source._promises = promises or {}
        options.setdefault("every", Every(steps=10**6))
        if served and port is None:
            self.ports.append(port := free_port())
        monitoring = Monitoring(port=port, textfile=textfile) if served or textfile else None
        settings = Settings(root=self.folder, job=job, monitoring=monitoring, **options)
        return CheckpointEngine(source, settings, environment={}), training

    def started(self, job: str, **options: Any) -> tuple[CheckpointEngine, Training]:
        """Make an engine and resume it; it is closed when the scene is."""
        engine, training = self.engine(job, **options)
        engine.resume()
        self.open.callback(_closed, engine)
        return engine, training

    def again(self, saving: CheckpointEngine) -> None:
        """Let a run save again and again."""
        self.turns.append(lambda: saving.save(1, reason="asked for", wait=True))

    def turn(self) -> None:
        """Let each run do what it does."""
        for turn in self.turns:
            turn()


def _closed(engine: CheckpointEngine) -> None:
    with suppress(SaveFailed):
        engine.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    with scene.open:
        yield scene


def past(scene: Scene, job: str, **options: Any) -> None:
    """Leave a run as a killed process does."""
    engine, _ = scene.engine(job, served=False, **options)
    engine.resume()
    engine.save(1, reason="asked for", wait=True)
    abandon(engine)


def healthy(scene: Scene) -> None:
    scene.ports.append(free_port())
    script = Path(__file__).with_name("healthy.py")
    command = [sys.executable, os.fspath(script), os.fspath(scene.folder)]
    environment = {
        **os.environ,
        "UNBROKEN_MONITORING": f"port={scene.ports[-1]}",
        "PYTHONPATH": os.fspath(ROOT / "src"),
    }
    training = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, cwd=ROOT)
    assert training.stdin is not None
    scene.open.callback(training.wait)
    scene.open.callback(training.stdin.close)


def failing(scene: Scene) -> None:
    engine, _ = scene.started("failing")
    steps = scene.folder / "failing" / "steps"
    steps.rename(scene.folder / "steps")
    steps.write_text("in the way")
    with pytest.raises(SaveFailed):
        engine.save(1, reason="asked for", wait=True)


def stalled(scene: Scene) -> None:
    scene.started("stalled", every=Every(seconds=0.3))


def fallen(scene: Scene) -> None:
    past(scene, "fallen")
    commit = Repository.open(scene.folder, "fallen").commits()[0]
    victim = scene.folder / "fallen" / commit.directory / "policy_weights.json"
    victim.write_bytes(victim.read_bytes()[:-9])
    engine, _ = scene.started("fallen")
    scene.again(engine)


def inexact(scene: Scene) -> None:
    promises = {"policy_weights": Promise(Fidelity.APPROXIMATE, "of a test")}
    past(scene, "inexact", promises=promises)
    scene.started("inexact", promises=promises)


def too_new(scene: Scene) -> None:
    """Seen through a textfile: the process is gone."""
    past(scene, "too-new")
    (scene.folder / "too-new" / layout.FORMAT).write_bytes(seal(FormatRecord(version=999)))
    shown = scene.folder / "textfiles"
    shown.mkdir()
    engine, _ = scene.engine("too-new", served=False, textfile=shown / "metrics")
    with pytest.raises(UnsupportedFormat):
        engine.resume()
    scene.ports.append(scene.open.enter_context(serving(shown)))


def spoilt(scene: Scene) -> None:
    engine, training = scene.started("spoilt")
    training.net.weights[0, 0] = np.nan
    scene.again(engine)


def growing(scene: Scene, prometheus: Prometheus, port: int) -> None:
    """A hundred megabytes at once, as soon as Prometheus knows how little there was before."""
    engine, training = scene.started("growing", port=port, width=4000)
    waiting = [True]

    def grow() -> None:
        if waiting and prometheus.ask(f'checkpoint_storage_usage_gb{{job="growing"}} offset {OFFSET}'):
            waiting.clear()
            training.step()
            engine.save(1, reason="asked for", wait=True)

    scene.turns.append(grow)


def costly(scene: Scene) -> None:
    engine, _ = scene.started("costly", every=Every(max_overhead=0.0001))
    scene.again(engine)


def unheard(scene: Scene) -> None:
    engine, _ = scene.engine("unheard", textfile=scene.folder / "nowhere" / "run.prom")
    with pytest.warns(MonitoringWarning, match="the file"):
        _resume_and_save(engine)
    scene.open.callback(_closed, engine)
    scene.again(engine)


def _resume_and_save(engine: CheckpointEngine) -> None:
    engine.resume()
    assert isinstance(engine._observer, Several)
    monitor, _ = engine._observer.observers
    assert isinstance(monitor, Monitor)
    monitor._worker.finish(60)
    engine.save(1, reason="asked for", wait=True)


EXPECTED = {
    ("UnbrokenSaveFailing", "failing"),
    ("UnbrokenNoCheckpoint", "stalled"),
    ("UnbrokenRecoveryFell", "fallen"),
    ("UnbrokenNotConsistent", "inexact"),
    ("UnbrokenStartFailed", "too-new"),
    ("UnbrokenVersionError", "too-new"),
    ("UnbrokenWeightsNotFinite", "spoilt"),
    ("UnbrokenStorageGrowing", "growing"),
    ("UnbrokenOverheadAboveBudget", "costly"),
    ("UnbrokenMetricsFailing", "unheard"),
}


def test_each_alert_fires_for_the_run_it_is_about_and_for_no_other(
    scene: Scene, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for prepare in (healthy, failing, stalled, fallen, inexact, too_new, spoilt, costly, unheard):
        prepare(scene)
    scene.ports.append(port := free_port())
    prometheus = Prometheus(tmp_path_factory.mktemp("prometheus"), scene.ports)
    scene.open.callback(prometheus.close)
    growing(scene, prometheus, port)
    prometheus.until(lambda: prometheus.fired() >= EXPECTED, meanwhile=scene.turn)
    prometheus.until(
        lambda: bool(prometheus.ask('unbroken_saves_total{job="healthy"} > 2')), meanwhile=scene.turn
    )
    assert prometheus.fired() == EXPECTED
    assert {alert for alert, _ in EXPECTED} == set(ALERTS)
