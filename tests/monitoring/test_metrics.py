"""What the metrics of a real run are, scraped from its endpoint."""

from __future__ import annotations

import os
import re
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.runs import abandon, flip_newest, repository, run_and_abandon
from tests.engine.training import Training, engine_of, source_of, train
from tests.monitoring.prometheus import samples
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.monitoring.metrics import GAUGES, names
from unbroken.engine.monitoring.monitor import Monitor
from unbroken.engine.monitoring.target import Monitoring
from unbroken.engine.observer import Several
from unbroken.engine.schedule import Every
from unbroken.engine.settings import Settings
from unbroken.errors import NoUsableCheckpoint, RunBusy, UnsupportedFormat
from unbroken.format import layout
from unbroken.format.records import FormatRecord
from unbroken.repo.seal import seal
from unbroken.repo.usage import sizes_of
from unbroken.state.snapshot import Promise
from unbroken.types import Fidelity

SEED = {
    "checkpoint_save_duration_seconds",
    "checkpoint_size_bytes",
    "serialization_overhead_percent",
    "checkpoint_success_rate",
    "checkpoint_recovery_duration_seconds",
    "state_consistency_score",
    "recovery_success_rate",
    "version_compatibility_errors",
    "checkpoint_storage_usage_gb",
    "memory_overhead_mb",
    "network_bandwidth_mbps",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def textfile(tmp_path: Path) -> Path:
    return tmp_path / "run.prom"


def monitor_of(engine: CheckpointEngine) -> Monitor:
    assert isinstance(engine._observer, Several)
    monitor, _ = engine._observer.observers
    assert isinstance(monitor, Monitor)
    return monitor


def scraped(engine: CheckpointEngine) -> dict[str, float]:
    """Return what the endpoint says once all that is known so far was told."""
    monitor = monitor_of(engine)
    assert monitor._worker.finish(60)
    with urllib.request.urlopen(monitor.url, timeout=60) as answer:
        return samples(answer.read().decode())


def served(training: Training, root: Path, **options: Any) -> CheckpointEngine:
    return engine_of(training, root, monitoring=Monitoring(port=0), **options)


def test_the_public_names_are_served_exactly_so_as_gauges_with_the_runs_name(root: Path) -> None:
    training = Training()
    with served(training, root) as engine:
        engine.resume()
        assert monitor_of(engine)._worker.finish(60)
        with urllib.request.urlopen(monitor_of(engine).url, timeout=60) as answer:
            text = answer.read().decode()
    types = dict(re.findall(r"# TYPE (\w+) (\w+)", text))
    assert {name for name in types if not name.startswith("unbroken_")} == SEED
    assert {types[name] for name in SEED} == {"gauge"}
    served_names = {line.partition("{")[0] for line in text.splitlines() if not line.startswith("#")}
    assert {name for name in served_names if not name.endswith("_created")} == set(names())
    assert all('job="run"' in line for line in text.splitlines() if not line.startswith("#"))


@pytest.mark.parametrize("writer", ["thread", "process"])
def test_after_saves_they_say_what_lies_in_the_run(root: Path, writer: str) -> None:
    training = Training(width=200)
    engine = served(training, root, writer=writer)
    engine.resume()
    train(engine, training, start=0, until=35)
    said = scraped(engine)
    held = repository(root)
    newest = held.commits()[0]
    assert said["unbroken_saves_total"] == said["unbroken_checkpoints"] == 4
    assert said["unbroken_last_checkpoint_step"] == newest.step == 30
    assert said["unbroken_last_checkpoint_timestamp_seconds"] == newest.time
    written = [cost.written for cost in held.meta(newest).cost.values()]
    assert said["unbroken_checkpoint_written_bytes"] == sum(size or 0 for size in written) > 0
    assert said["checkpoint_size_bytes"] == held.meta(newest).bytes >= training.net.weights.nbytes
    assert said["checkpoint_success_rate"] == said["state_consistency_score"] == 1
    assert said["unbroken_save_seconds_count"] == said["unbroken_pause_seconds_count"] == 4
    assert 0 < said["checkpoint_save_duration_seconds"] <= said["unbroken_save_seconds_sum"]
    assert said["memory_overhead_mb"] * 10**6 >= training.net.weights.nbytes
    assert said["serialization_overhead_percent"] > 0
    assert said["network_bandwidth_mbps"] == 0  # a directory
    assert said["unbroken_training"] == 1
    engine.close()


def test_the_storage_is_what_the_store_holds(root: Path, textfile: Path) -> None:
    training = Training(width=200)
    with engine_of(training, root, monitoring=Monitoring(textfile=textfile)) as engine:
        engine.resume()
        monitor = monitor_of(engine)
        assert monitor._worker.finish(60)
        monitor._measure_at = 0.0  # as if it were long ago
        monitor._worker.ask()
        assert monitor._worker.finish(60)
        usage = samples(textfile.read_text())["checkpoint_storage_usage_gb"] * 10**9
        assert usage == pytest.approx(sum(sizes_of(repository(root).store).values()), abs=1)


def test_a_first_start_has_lost_nothing(root: Path) -> None:
    with served(Training(), root) as engine:
        engine.resume()
        assert scraped(engine)["unbroken_steps_lost"] == 0


def test_a_restart_tells_tier_lost_steps_and_its_history(root: Path) -> None:
    run_and_abandon(root, until=37)
    training = Training()
    engine = served(training, root)
    report = engine.resume()
    said = scraped(engine)
    assert said["unbroken_recovery_tier"] == said["recovery_success_rate"] == 1
    assert said["checkpoint_recovery_duration_seconds"] == report.seconds > 0
    starts = {name: number for name, number in said.items() if name.startswith("unbroken_starts{")}
    assert sorted(starts.values()) == [1, 1]
    assert (
        {'tier="fresh"' in name for name in starts}
        == {'tier="newest"' in name for name in starts}
        == {True, False}
    )
    engine.close()


def test_a_fall_to_an_older_checkpoint_is_tier_two_and_still_exact(root: Path) -> None:
    run_and_abandon(root)
    flip_newest(root)
    engine = served(Training(), root)
    engine.resume()
    said = scraped(engine)
    assert said["unbroken_recovery_tier"] == 2
    assert said["state_consistency_score"] == said["recovery_success_rate"] == 1
    engine.close()


def test_a_fresh_start_in_place_of_what_is_damaged_is_tier_four_and_consistent_with_nothing(
    root: Path,
) -> None:
    run_and_abandon(root)
    flip_newest(root, count=9)
    engine = served(Training(), root, worst_tier="fresh")
    engine.resume()
    said = scraped(engine)
    assert said["unbroken_recovery_tier"] == 4
    assert said["state_consistency_score"] == said["recovery_success_rate"] == 0
    engine.close()


def test_the_consistency_is_the_share_of_parts_that_came_back_exactly(root: Path) -> None:
    promises = {"policy_weights": Promise(Fidelity.APPROXIMATE, "of a test")}

    def engine() -> CheckpointEngine:
        source = source_of(Training())
        source._promises = promises
        monitoring = Monitoring(port=0)
        return CheckpointEngine(
            source, Settings(root=root, job="run", every=10, monitoring=monitoring), environment={}
        )

    first = engine()
    first.resume()
    assert scraped(first)["state_consistency_score"] == 1  # nothing was to be brought back
    first.close()
    second = engine()
    report = second.resume()
    assert len(report.promises) == 2
    assert scraped(second)["state_consistency_score"] == 0.5
    second.close()


def test_weights_that_are_not_finite_are_told(root: Path) -> None:
    training = Training()
    engine = served(training, root)
    engine.resume()
    assert scraped(engine)["unbroken_checkpoint_good"] == 1
    training.net.weights[0, 0] = np.nan
    engine.save(1, reason="asked for", wait=True)
    assert scraped(engine)["unbroken_checkpoint_good"] == 0
    engine.close()


def test_the_budget_and_the_limit_are_those_of_the_settings(root: Path) -> None:
    engine = served(Training(), root, every=Every(max_loss="5min", max_overhead=0.02))
    engine.resume()
    said = scraped(engine)
    assert (said["unbroken_age_limit_seconds"], said["unbroken_overhead_budget_percent"]) == (300, 2)
    engine.close()


def test_a_start_that_stops_is_left_in_the_textfile(root: Path, textfile: Path) -> None:
    run_and_abandon(root)
    flip_newest(root, count=9)
    with pytest.raises(NoUsableCheckpoint):
        engine_of(Training(), root, monitoring=Monitoring(textfile=textfile)).resume()
    said = samples(textfile.read_text())
    assert said["unbroken_last_start_failed"] == said["unbroken_starts_failed_total"] == 1
    assert said["state_consistency_score"] == said["recovery_success_rate"] == 0
    assert said["unbroken_training"] == said["version_compatibility_errors"] == 0


def test_a_format_that_is_too_new_is_a_version_error(root: Path, textfile: Path) -> None:
    run_and_abandon(root)
    (root / "run" / layout.FORMAT).write_bytes(seal(FormatRecord(version=999)))
    with pytest.raises(UnsupportedFormat):
        engine_of(Training(), root, monitoring=Monitoring(textfile=textfile)).resume()
    assert samples(textfile.read_text())["version_compatibility_errors"] == 1


def test_a_second_process_on_the_run_leaves_the_metrics_of_the_first_alone(
    root: Path, textfile: Path
) -> None:
    training = Training()
    monitoring = Monitoring(port=0, textfile=textfile)
    with engine_of(training, root, monitoring=monitoring) as engine:
        engine.resume()
        assert monitor_of(engine)._worker.finish(60)
        before = textfile.read_bytes()
        other = engine_of(Training(), root, monitoring=monitoring)
        with pytest.raises(RunBusy):
            other.resume()
        assert textfile.read_bytes() == before
        assert monitor_of(other).url == ""


def test_a_run_that_has_ended_says_so_and_its_endpoint_is_gone(root: Path, textfile: Path) -> None:
    training = Training()
    engine = engine_of(training, root, monitoring=Monitoring(port=0, textfile=textfile))
    engine.resume()
    url = monitor_of(engine).url
    engine.close()
    assert samples(textfile.read_text())["unbroken_training"] == 0
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=60)


def test_a_run_that_was_killed_is_still_said_to_train(root: Path, textfile: Path) -> None:
    training = Training()
    engine = engine_of(training, root, monitoring=Monitoring(textfile=textfile))
    engine.resume()
    assert monitor_of(engine)._worker.finish(60)
    abandon(engine)
    assert samples(textfile.read_text())["unbroken_training"] == 1


def test_tensorboard_reads_every_gauge_at_the_step_of_its_save(root: Path, tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = tmp_path / "board"
    training = Training()
    with engine_of(training, root, monitoring=Monitoring(tensorboard=folder)) as engine:
        engine.resume()
        for step in (10, 20):
            train(engine, training, start=step - 1, until=step + 1)
            assert monitor_of(engine)._worker.finish(60)
    found = reading.EventAccumulator(os.fspath(folder))
    found.Reload()
    tags = {tag.removeprefix("unbroken/").partition("/")[0] for tag in found.Tags()["scalars"]}
    assert set(GAUGES) <= tags
    steps = [(event.step, event.value) for event in found.Scalars("unbroken/unbroken_saves_total")]
    assert {(0, 1), (10, 2), (20, 3)} <= set(steps)
