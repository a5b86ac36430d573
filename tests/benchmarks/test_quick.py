"""The benchmark itself, at tiny sizes: every row runs, and what was loaded equals what was saved."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.__main__ import GYM_PYTHON
from benchmarks.plan import CONTENDERS, PARTS, jobs
from benchmarks.records import GymRow, RanksRow, RestoreRow, Results, SaveRow, StoreRow, TrainingRow
from benchmarks.workloads import ATARI, GROWN, MODEL, VECTORS

ROOT = Path(__file__).parent.parent.parent
HAS_GYM = GYM_PYTHON.exists()
WANTED = tuple(part for part in PARTS if part != "gym" or HAS_GYM)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    out = folder / "page.md"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--folder", str(folder), "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    assert sorted(path.name for path in folder.iterdir()) == ["page.json", "page.md"], "left something behind"
    return out


@pytest.fixture(scope="module")
def results(page: Path) -> Results:
    return msgspec.json.decode(page.with_suffix(".json").read_bytes(), type=Results)


def test_no_row_is_missing_and_all_are_verified(results: Results) -> None:
    assert len(results.rows) == len(jobs(WANTED))
    assert [row for row in results.rows if row.failure or not row.verified] == []


def test_everybody_saves_what_he_can(results: Results) -> None:
    saved = {(row.workload, row.contender) for row in results.rows if isinstance(row, SaveRow)}
    names = {kind.name for kind in CONTENDERS.values()}
    plain = {kind.name for kind in CONTENDERS.values() if not kind.needs_buffer}
    for workload in (ATARI, VECTORS):
        assert {contender for name, contender in saved if name == workload} == names
    assert {contender for name, contender in saved if name == MODEL} == plain
    assert {contender for name, contender in saved if name == GROWN} > {"Unbroken"}


def test_every_kind_of_row_has_its_figures(results: Results) -> None:
    for row in results.rows:
        if isinstance(row, SaveRow):
            assert row.first is not None
            assert row.back_to_back
            assert bool(row.after_idle) is (row.workload in (ATARI, MODEL))
            assert all(0 < save.blocked <= save.durable and save.written for save in row.back_to_back)
        elif isinstance(row, RestoreRow):
            assert row.warm and row.cold and row.stored
        elif isinstance(row, StoreRow):
            assert row.live <= row.size
        elif isinstance(row, RanksRow):
            assert [len(world.ranks) for world in row.worlds] == [world.size for world in row.worlds]
            assert all(save.written > 0 for world in row.worlds for one in world.ranks for save in one.saves)
        elif isinstance(row, GymRow):
            assert [one.connections for one in row.calls] == [1, 16, 16]
            for server in row.servers:
                assert server.from_log > 0 and server.from_checkpoint > 0
                for series in server.series:
                    for save in (series.full, *series.later):
                        assert 0 < save.paused < save.blocked <= save.durable and save.written
        else:
            assert isinstance(row, TrainingRow)
            assert len(row.plain) == len(row.saving) == len(row.saves)


def test_sessions_of_nemo_gym_are_measured_where_it_is(results: Results) -> None:
    if not HAS_GYM and os.environ.get("CI") != "true":
        pytest.skip(f"{GYM_PYTHON} is not there: scripts/install-gym makes it")
    assert [len(row.servers) for row in results.rows if isinstance(row, GymRow)] == [2]


def test_our_rows_stand_beside_the_limits_of_the_machine(results: Results) -> None:
    ours = [row for row in results.rows if isinstance(row, SaveRow) and row.contender == "Unbroken"]
    assert {row.workload for row in ours} == {ATARI, GROWN, VECTORS, MODEL}
    for row in ours:
        assert all(save.limits is not None for save in [*row.back_to_back, *row.after_idle])
        assert 0 < row.compressed <= row.changed <= row.state


def test_the_page_says_that_it_is_no_result(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "**No result**" in text
    assert "failed" not in text


def test_a_run_that_is_ended_leaves_no_gigabytes_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", "c", "--folder", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any(line.startswith("[1/1]") for line in process.stderr), "measures by now"
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
    assert process.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_names_the_script() -> None:
    # The tests may be run by a make of their own, which tells its children so.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "--dry-run", "bench", "ONLY=a,c"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "scripts/bench --only a,c"
