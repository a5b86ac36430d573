"""What fails is counted and stays counted; that metrics cannot be told costs a training nothing, and is heard once."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import urllib.request
import warnings
from pathlib import Path

import pytest

from tests.engine.runs import break_store, steps_of
from tests.engine.training import Training, engine_of, train, undisturbed
from tests.monitoring.prometheus import samples
from tests.ports import HOST
from tests.store.test_real_conditions import mounted
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.monitoring import monitor as monitors
from unbroken.engine.monitoring.monitor import Monitor, MonitoringWarning
from unbroken.engine.monitoring.target import Monitoring
from unbroken.engine.observer import Several
from unbroken.errors import ConfigError, SaveFailed, StoreFull


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


def told(engine: CheckpointEngine, textfile: Path) -> dict[str, float]:
    assert monitor_of(engine)._worker.finish(60)
    return samples(textfile.read_text())


def test_a_save_that_fails_in_the_background_lets_an_alert_metric_rise_once(
    root: Path, textfile: Path
) -> None:
    training = Training()
    engine = engine_of(training, root, monitoring=Monitoring(textfile=textfile))
    engine.resume()
    repair = break_store(root)
    engine.save(5, reason="asked for")
    engine._writer.wait()
    said = told(engine, textfile)
    assert (said["unbroken_saves_failed_total"], said["unbroken_last_save_failed"]) == (1, 1)
    assert (said["checkpoint_success_rate"], said["unbroken_saves_total"]) == (0.5, 1)
    repair()
    with pytest.raises(SaveFailed):  # the same failure, raised where the training hears of it
        engine.save(6, reason="asked for")
    engine.save(7, reason="asked for", wait=True)
    said = told(engine, textfile)
    assert (said["unbroken_saves_failed_total"], said["unbroken_last_save_failed"]) == (1, 0)
    assert said["checkpoint_success_rate"] == pytest.approx(2 / 3)
    engine.close()


def test_on_a_full_disk_the_metric_rises_and_once_there_is_room_the_run_goes_on(
    textfile: Path, tmp_path: Path
) -> None:
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=1m", "unbroken-test") as disk:
        training = Training(width=200)  # 320 KB of weights that no compression makes small
        engine = engine_of(training, disk, monitoring=Monitoring(textfile=textfile))
        engine.resume()
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(750_000))
        training.step()
        with pytest.raises(SaveFailed) as raised:
            engine.save(1, reason="asked for", wait=True)
        assert isinstance(raised.value.__cause__, StoreFull)
        said = told(engine, textfile)
        assert (said["unbroken_saves_failed_total"], said["unbroken_last_save_failed"]) == (1, 1)
        ballast.unlink()
        engine.save(2, reason="asked for", wait=True)
        said = told(engine, textfile)
        assert (said["unbroken_saves_failed_total"], said["unbroken_last_save_failed"]) == (1, 0)
        engine.close()
        assert steps_of(disk) == [2, 0]


def test_a_save_that_cannot_be_begun_is_counted_as_well(root: Path, textfile: Path) -> None:
    engine = engine_of(Training(), root, monitoring=Monitoring(textfile=textfile))
    engine.resume()
    pending = root / "run" / "pending.json"
    pending.unlink(missing_ok=True)
    pending.mkdir()
    (pending / "in the way").touch()
    with pytest.raises(SaveFailed):
        engine.save(5, reason="asked for", wait=True)
    assert told(engine, textfile)["unbroken_saves_failed_total"] == 1
    shutil.rmtree(pending)
    engine.close()


def test_counters_go_on_in_the_textfile_over_processes(root: Path, textfile: Path) -> None:
    def start() -> CheckpointEngine:
        engine = engine_of(Training(), root, monitoring=Monitoring(textfile=textfile))
        engine.resume()
        return engine

    first = start()
    repair = break_store(root)
    first.save(5, reason="asked for")
    first._writer.wait()
    repair()
    with pytest.raises(SaveFailed):
        first.close()
    second = start()
    second.save(6, reason="asked for", wait=True)
    said = told(second, textfile)
    assert (said["unbroken_saves_failed_total"], said["unbroken_saves_total"]) == (1, 2)
    assert said["unbroken_last_save_failed"] == 0
    second.close()


def test_metrics_of_another_run_in_the_file_are_not_carried_over(root: Path, textfile: Path) -> None:
    textfile.write_text('unbroken_saves_failed_total{job="other"} 7\n')
    engine = engine_of(Training(), root, monitoring=Monitoring(textfile=textfile))
    engine.resume()
    assert told(engine, textfile)["unbroken_saves_failed_total"] == 0
    engine.close()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        bytes(300),
        b'# HELP a b\nunbroken_saves_total{job="run"} x\n',
        b"unbroken_saves_total \xff\xfe\x00",
    ],
    ids=range(4),
)
def test_a_file_of_ours_that_cannot_be_read_is_replaced(root: Path, textfile: Path, content: bytes) -> None:
    textfile.write_bytes(content)
    engine = engine_of(Training(), root, monitoring=Monitoring(textfile=textfile))
    engine.resume()
    assert told(engine, textfile)["unbroken_saves_total"] == 1
    engine.close()


@pytest.mark.parametrize(
    "content", [b"my thesis", b"\xff\xfe\x00", b'other_total{job="run"} 7\n'], ids=range(3)
)
def test_a_file_that_is_not_ours_stays_as_it_is_and_it_is_heard_once(
    root: Path, textfile: Path, content: bytes
) -> None:
    textfile.write_bytes(content)
    _heard_once(root, textfile, "It holds something else than our metrics, and is left as it is. Training")
    assert textfile.read_bytes() == content


def test_neither_a_pipe_nor_a_device_nor_a_link_is_read_waited_for_or_replaced(
    root: Path, textfile: Path
) -> None:
    os.mkfifo(textfile)
    _heard_once(root, textfile, "It is no regular file. Training")
    assert textfile.is_fifo()
    textfile.unlink()
    textfile.symlink_to("/dev/full")
    _heard_once(root, textfile, "It is no regular file. Training")
    assert os.readlink(textfile) == "/dev/full"
    _heard_once(root, Path("/dev/full"), "It is no regular file. Training")
    assert Path("/dev/full").is_char_device()


def _heard_once(root: Path, textfile: Path, why: str) -> None:
    """Train and save with this textfile: the checkpoints are there, and one warning says why metrics are not."""
    training = Training()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        engine = engine_of(training, root, resume="never", monitoring=Monitoring(textfile=textfile))
        engine.resume()
        train(engine, training, start=0, until=15)
        assert monitor_of(engine)._worker.finish(60)
        engine.save(15, reason="asked for", wait=True)
        engine.close()
    said = [str(one.message) for one in heard if issubclass(one.category, MonitoringWarning)]
    assert [why in one for one in said] == [True]
    assert steps_of(root)[0] == 15


def test_neither_a_missing_folder_nor_a_port_that_is_taken_costs_a_checkpoint_and_each_is_heard_once(
    root: Path, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        (tmp_path / "a file").write_text("")
        monitoring = Monitoring(
            port=taken.getsockname()[1],
            textfile=tmp_path / "nowhere" / "a.prom",
            tensorboard=tmp_path / "a file",
        )
        training = Training()
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            engine = engine_of(training, root, monitoring=monitoring)
            engine.resume()
            for start in (0, 20, 40):
                train(engine, training, start=start, until=start + 20)
                assert monitor_of(engine)._worker.finish(60)
            engine.save(60, reason="asked for", wait=True)
            engine.close()
    said = sorted(str(one.message) for one in heard if issubclass(one.category, MonitoringWarning))
    assert len(said) == 3
    assert ["TensorBoard in" in said[0], "the endpoint" in said[1], "the file" in said[2]] == [True] * 3
    assert all("Training and checkpoints go on" in one for one in said)
    assert steps_of(root) == [60, 50, 40, 30, 20]
    assert training.digest() == undisturbed(60)


def test_a_port_that_becomes_free_is_taken_at_the_next_save(root: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MonitoringWarning)
        with socket.socket() as taken:
            taken.bind((HOST, 0))
            taken.listen()
            engine = engine_of(Training(), root, monitoring=Monitoring(port=taken.getsockname()[1]))
            engine.resume()
            assert monitor_of(engine)._worker.finish(60)
            assert monitor_of(engine).url == ""
        engine.save(1, reason="asked for", wait=True)
        assert monitor_of(engine)._worker.finish(60)
        assert urllib.request.urlopen(monitor_of(engine).url, timeout=60).status == 200
        engine.close()


def test_a_file_system_that_hangs_holds_up_neither_saves_nor_the_end(
    root: Path, textfile: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(monitors, "LAST_SECONDS", 0.1)
    training = Training()
    engine = engine_of(training, root, monitoring=Monitoring(textfile=textfile))
    pipe = textfile.with_name(f".{textfile.name}.unbroken-tmp")
    os.mkfifo(pipe)  # to open it for writing waits until somebody reads
    engine.resume()
    train(engine, training, start=0, until=25)
    engine.close()
    assert steps_of(root) == [20, 10, 0]
    assert (
        "Metrics cannot be told by the last metrics: not told within 0.1 seconds." in capfd.readouterr().err
    )
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # lets the thread go
    monitor_of(engine)._worker.finish(60)
    os.close(reader)


def test_the_file_is_never_seen_half_written_and_nothing_is_left_beside_it(
    root: Path, textfile: Path
) -> None:
    training = Training()
    engine = engine_of(training, root, monitoring=Monitoring(textfile=textfile))
    engine.resume()
    held = os.open(textfile, os.O_RDONLY) if monitor_of(engine)._worker.finish(60) else -1
    before = textfile.read_bytes()
    train(engine, training, start=0, until=25)
    engine.close()
    assert os.pread(held, 1 << 20, 0) == before  # it was replaced, not written over
    os.close(held)
    assert [path.name for path in textfile.parent.iterdir() if path.name != "runs"] == [textfile.name]
    assert textfile.stat().st_mode & 0o777 == 0o644


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(root: Path, textfile: Path) -> None:
    victim = textfile.with_name("precious")
    victim.write_text("mine")
    textfile.with_name(f".{textfile.name}.unbroken-tmp").symlink_to(victim)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MonitoringWarning)
        engine = engine_of(Training(), root, monitoring=Monitoring(textfile=textfile))
        engine.resume()
        assert monitor_of(engine)._worker.finish(60)
        engine.close()
    assert victim.read_text() == "mine"


def test_a_forked_child_that_outlives_the_training_neither_serves_nor_keeps_the_port(root: Path) -> None:
    engine = engine_of(Training(), root, monitoring=Monitoring(port=0))
    engine.resume()
    url = monitor_of(engine).url
    port = int(url.split(":")[2].split("/")[0])
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)  # lives until the test is over
        os._exit(0)
    try:
        assert urllib.request.urlopen(url, timeout=60).status == 200
        engine.close()
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(url, timeout=60)
        again = engine_of(Training(), root, monitoring=Monitoring(port=port))
        again.resume()
        assert urllib.request.urlopen(url, timeout=60).status == 200
        again.close()
    finally:
        os.close(writing)
        assert os.waitpid(child, 0)[1] == 0
        os.close(reading)


ROOT = Path(__file__).parents[2]


def run_alone(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=280, cwd=ROOT
    )


def test_without_monitoring_nothing_of_it_is_imported(tmp_path: Path) -> None:
    said = run_alone(
        "import sys; from unbroken import CheckpointEngine, Settings\n"
        "from tests.engine.training import Training, engine_of\n"
        f"from pathlib import Path; e = engine_of(Training(), Path({os.fspath(tmp_path)!r})); e.resume(); e.close()\n"
        "found = {'prometheus_client', 'http.server', 'tensorboard'} & set(sys.modules)\n"
        "assert not found - {'http.server'}, found\n"
        "assert 'unbroken.engine.monitoring.monitor' not in sys.modules\n"
    )
    assert said.returncode == 0, said.stderr


@pytest.mark.parametrize(
    ("library", "way", "hint"),
    [
        ("prometheus_client", "port=0", "pip install prometheus-client"),
        ("tensorboard", "tensorboard='board'", "pip install tensorboard"),
    ],
    ids=["prometheus", "tensorboard"],
)
def test_a_library_that_is_missing_is_said_before_anything_happens(
    tmp_path: Path, library: str, way: str, hint: str
) -> None:
    said = run_alone(
        f"import sys; sys.modules[{library!r}] = None\n"
        "from unbroken.engine.monitoring.target import Monitoring; from unbroken.errors import ConfigError\n"
        "from pathlib import Path; from tests.engine.training import Training, engine_of\n"
        f"root = Path({os.fspath(tmp_path)!r}) / 'runs'\n"
        "try: engine_of(Training(), root, monitoring=Monitoring(" + way + "))\n"
        "except ConfigError as error: print(error)\n"
        "assert not root.exists()\n"
    )
    assert said.returncode == 0, said.stderr
    assert hint in said.stdout


@pytest.mark.parametrize("text", ["", "port=x", "port=70000", "ports=1", "textfile="], ids=range(5))
def test_a_place_for_metrics_that_cannot_be_used_is_said_in_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Monitoring.parse(text)
    assert raised.value.hint
