"""What the metrics of a run in a bucket say: the network is told of there, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.training import Training, source_of
from tests.monitoring.prometheus import samples
from tests.store.proxy import Proxy
from tests.store.servers import Server
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.monitoring.monitor import Monitor
from unbroken.engine.monitoring.target import Monitoring
from unbroken.engine.observer import Several
from unbroken.engine.settings import Settings
from unbroken.repo.repository import Repository
from unbroken.repo.usage import sizes_of


def test_the_bandwidth_is_what_was_written_in_the_time_of_the_save(
    seaweedfs: Server, through: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNBROKEN_STATE_DIR", str(tmp_path / "state"))
    textfile, root = tmp_path / "run.prom", seaweedfs.place()
    training = Training(width=300)
    settings = Settings(root=root, job="run", every=10, monitoring=Monitoring(textfile=textfile))
    with CheckpointEngine(source_of(training), settings, environment={}) as engine:
        engine.resume()
        training.step()
        engine.save(1, reason="asked for", wait=True)
        assert isinstance(engine._observer, Several)
        monitor = engine._observer.observers[0]
        assert isinstance(monitor, Monitor)
        assert monitor._worker.finish(60)
        monitor._measure_at = 0.0  # as if it were long ago
        monitor._worker.ask()
        assert monitor._worker.finish(60)
        said = samples(textfile.read_text())
        repository = Repository.open(root, "run")
        meta = repository.meta(repository.commits()[0])
        written = sum(cost.written or 0 for cost in meta.cost.values())
        assert written >= training.net.weights.nbytes // 2
        # The save took no longer than from the copy to the commit, so it was at least as fast as that.
        assert (
            said["network_bandwidth_mbps"]
            >= 8 * written / said["checkpoint_save_duration_seconds"] / 10**6
            > 0
        )
        usage = sum(sizes_of(repository.store).values())
        assert said["checkpoint_storage_usage_gb"] * 10**9 == pytest.approx(usage, abs=1)
