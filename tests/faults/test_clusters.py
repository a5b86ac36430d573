"""The examples for SLURM and Kubernetes: their very scripts, with real signals and stubs for what a cluster brings."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from unbroken.repo import keys
from unbroken.repo.repository import Repository

HERE = Path(__file__).parents[2]
SLURM = HERE / "examples" / "slurm" / "train.sbatch"
KUBERNETES = HERE / "examples" / "kubernetes"
TRAINING = Path(__file__).with_name("waiting.py")
SECONDS = 60


class Cluster:
    """A directory in which jobs run, with an `srun` and a `scontrol` that tell what they were asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked = folder / "asked"
        self.ready = folder / "ready"
        os.mkfifo(self.ready)
        self._bin = folder / "bin"
        self._bin.mkdir()
        self._stub("srun", 'exec "$@"')
        self._stub("scontrol", f'echo "$@" >> {self.asked}')

    def _stub(self, name: str, line: str) -> None:
        path = self._bin / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)

    def start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env={
                **os.environ, "PATH": f"{self._bin}:{os.environ['PATH']}", "SLURM_JOB_ID": "4711",
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )  # fmt: skip

    def training(self, out: str, *, waits: bool = False) -> list[str]:
        return [sys.executable, str(TRAINING), out, str(self.ready) if waits else "-"]

    def end(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        """Wait until it ends, and return how. What does not is killed with all that it has started."""
        try:
            said, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
        return process.returncode, said

    def told(self, *command: str, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Start a command whose training waits, send it a signal, and return how it has ended."""
        process = self.start(*command)
        assert self.ready.read_text() == "waits"
        os.kill(process.pid, number)
        return self.end(process)

    def ends(self, *command: str) -> None:
        status, said = self.end(self.start(*command))
        assert status == 0, said

    @property
    def newest(self) -> tuple[int, str]:
        run = Repository.open(self.folder / "runs/job", "job")
        return run.commits()[0].step, run.meta(run.commits()[0]).reason

    def result(self, name: str) -> str:
        return (self.folder / name).read_text()


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    cluster = Cluster(tmp_path_factory.mktemp("U"))
    cluster.ends(*cluster.training("end"))
    return cluster.result("end")


def test_a_slurm_job_whose_time_is_up_saves_and_goes_back_into_the_queue(
    cluster: Cluster, undisturbed: str
) -> None:
    batch = ("bash", str(SLURM))
    status, said = cluster.told(*batch, *cluster.training("end", waits=True), number=signal.SIGUSR1)
    assert status == 75, said
    assert cluster.newest == (11, "preempted by SIGUSR1")
    assert cluster.asked.read_text() == "requeue 4711\n"
    cluster.ends(*batch, *cluster.training("end"))
    assert cluster.result("end") == undisturbed
    assert cluster.asked.read_text() == "requeue 4711\n", "what has come to its end is not queued again"


def test_a_slurm_job_that_is_cancelled_saves_and_is_not_queued_again(cluster: Cluster) -> None:
    batch = ("bash", str(SLURM))
    status, said = cluster.told(*batch, *cluster.training("end", waits=True), number=signal.SIGTERM)
    assert status == 75, said
    assert cluster.newest == (11, "preempted by SIGTERM")
    assert not cluster.asked.exists()


def test_a_slurm_job_whose_time_is_up_while_it_imports_is_queued_again(cluster: Cluster) -> None:
    """Nobody has a handler yet, so that the training dies of the signal."""
    imports = f"import signal; open({str(cluster.ready)!r}, 'w').write('waits'); signal.pause()"
    batch = ("bash", str(SLURM), sys.executable, "-c", imports)
    status, said = cluster.told(*batch, number=signal.SIGUSR1)
    assert status == 128 + signal.SIGUSR1, said
    assert cluster.asked.read_text() == "requeue 4711\n"


def test_a_slurm_job_that_fails_is_not_queued_again(cluster: Cluster) -> None:
    status, said = cluster.end(cluster.start("bash", str(SLURM), "sh", "-c", "exit 3"))
    assert status == 3, said
    assert not cluster.asked.exists()


@pytest.mark.parametrize(
    "entry", [(), ("/bin/sh", str(KUBERNETES / "entrypoint.sh"))], ids=["python", "through a shell"]
)
def test_as_the_first_process_of_a_container_it_hears_the_eviction(
    entry: Sequence[str], cluster: Cluster, undisturbed: str
) -> None:
    """The first process of a pid namespace gets only the signals that it has a handler for."""
    contained = ("unshare", "--pid", "--fork", "--kill-child")
    probe = (
        subprocess.run([*contained, "true"], check=False, capture_output=True)
        if shutil.which("unshare")
        else None
    )
    if probe is None or probe.returncode:
        pytest.skip("no process namespaces here")
    process = cluster.start(*contained, *entry, *cluster.training("end", waits=True))
    assert cluster.ready.read_text() == "waits"
    (first,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(first), signal.SIGTERM)
    status, said = cluster.end(process)
    assert status == 75, said
    assert cluster.newest == (11, "preempted by SIGTERM")
    cluster.ends(*entry, *cluster.training("end"))
    assert cluster.result("end") == undisturbed


def test_the_job_of_kubernetes_leaves_time_for_the_save_and_starts_again_after_it() -> None:
    job: Any = yaml.safe_load((KUBERNETES / "job.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    environment = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    assert pod["terminationGracePeriodSeconds"] >= 2 * float(environment["UNBROKEN_GRACE"])
    assert pod["restartPolicy"] == "Never", "which a policy for failures demands"
    first = job["spec"]["podFailurePolicy"]["rules"][0]
    assert first == {
        "action": "Ignore",
        "onExitCodes": {"containerName": container["name"], "operator": "In", "values": [75]},
    }
    assert container["command"][0] == "python", "a shell as process 1 would keep the signal"
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert any(environment["UNBROKEN_ROOT"].startswith(f"{mount}/") for mount in mounts)
    (key,) = (entry for entry in container["env"] if entry["name"] == keys.VARIABLE)
    secret = key["valueFrom"]["secretKeyRef"]
    assert secret["optional"] is True, "runs without pickled parts need none"
