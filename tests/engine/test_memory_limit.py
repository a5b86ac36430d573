"""How much memory staging may take: what the machine, the control groups and `ulimit -v` leave."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from unbroken.engine.memory_limit import free_share

MB = 1_000_000
MACHINE = 64_000 * MB
NO_LIMIT = 9223372036854771712
"""What the first version writes for "none"."""


class System:
    """A made-up /proc with hierarchies mounted below a folder of the test."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.mounts, self.member = folder / "proc", folder / "sys fs", list[str]()
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {MACHINE // 1024} kB\n")
        self.lines = ["22 1 0:20 / /proc rw,relatime - proc proc rw"]

    def mount(self, name: str, *, version: int, root: str = "/", path: str = "/") -> Path:
        """Mount a hierarchy at `root`, of which the process is in `path`."""
        point = self.mounts / name
        point.mkdir(parents=True)
        kind = "cgroup2 cgroup2 rw,nsdelegate" if version == 2 else "cgroup cgroup rw,memory"
        number, controllers = ("0", "") if version == 2 else ("4", "memory")
        escaped = str(point).replace(" ", "\\040")
        self.lines.append(f"35 30 0:32 {root} {escaped} rw,relatime shared:9 - {kind}")
        self.member.append(f"{number}:{controllers}:{path}")
        return point

    def left(self) -> int:
        (self.proc / "self" / "mountinfo").write_bytes(os.fsencode("\n".join(self.lines)))
        (self.proc / "self" / "cgroup").write_text("\n".join(["9:name=systemd:/x", *self.member]))
        return 2 * free_share(proc=self.proc)


def second(group: Path, limit: int | None, used: int = 0, inactive: int = 0) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text("max\n" if limit is None else f"{limit}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\n")


def first(group: Path, limit: int, used: int = 0, inactive: int = 0) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (group / "memory.usage_in_bytes").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"inactive_file 7\ntotal_inactive_file {inactive}\n")


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


def test_where_no_group_has_a_limit_the_machine_counts(system: System) -> None:
    second(system.mount("unified", version=2, path="/user/a") / "user" / "a", None)
    first(system.mount("memory", version=1), NO_LIMIT)
    assert system.left() == MACHINE


def test_in_a_container_the_group_is_the_mount(system: System) -> None:
    second(system.mount("cgroup", version=2), 800 * MB, used=300 * MB)
    assert system.left() == 500 * MB


@pytest.mark.parametrize("tight", ["system.slice", "system.slice/train.scope"])
def test_the_tightest_level_holds(system: System, tight: str) -> None:
    point = system.mount("cgroup", version=2, path="/system.slice/train.scope")
    for group in ("system.slice", "system.slice/train.scope"):
        second(point / group, 800 * MB if group == tight else 9_000 * MB, used=300 * MB)
    assert system.left() == 500 * MB


def test_the_first_version_counts_as_well(system: System) -> None:
    system.mount("unified", version=2)
    point = system.mount("memory", version=1, path="/slurm/job_7")
    first(point, NO_LIMIT)
    first(point / "slurm", NO_LIMIT)
    first(point / "slurm" / "job_7", 700 * MB, used=300 * MB)
    assert system.left() == 400 * MB


def test_of_a_container_of_the_first_version_only_its_own_group_is_mounted(system: System) -> None:
    first(system.mount("memory", version=1, root="/docker/1f", path="/docker/1f"), 700 * MB, used=200 * MB)
    assert system.left() == 500 * MB


@pytest.mark.parametrize("path", ["/../../other", "/elsewhere"])
def test_a_group_that_is_not_mounted_is_not_looked_for(system: System, path: str) -> None:
    second(system.mount("cgroup", version=2, root="/docker/1f", path=path), 700 * MB, used=200 * MB)
    assert system.left() == 500 * MB


@pytest.mark.parametrize("version", [1, 2])
def test_files_that_were_read_are_given_back(system: System, version: int) -> None:
    write = first if version == 1 else second
    write(system.mount("cgroup", version=version), 800 * MB, used=790 * MB, inactive=600 * MB)
    assert system.left() == 610 * MB


def test_a_group_without_the_usual_files_counts_for_nothing(system: System) -> None:
    system.mount("cgroup", version=2)
    assert system.left() == MACHINE


@pytest.mark.parametrize("file", ["memory.max", "memory.current"])
def test_what_a_sandbox_writes_otherwise_counts_for_nothing(system: System, file: str) -> None:
    point = system.mount("cgroup", version=2)
    second(point, 800 * MB)
    (point / file).write_text("unlimited today\n")
    assert system.left() == MACHINE


@pytest.mark.parametrize(
    "line",
    [
        "none",
        "",
        "36 25 0:33 / /mnt rw - tmpfs  rw",
        "36 25 0:33 / /a\u2028b rw - x y z",
        b"36 25 0:33 / /\xff\xfe rw - tmpfs x rw",
    ],
)
def test_mounts_of_others_hide_no_limit(system: System, line: str | bytes) -> None:
    system.lines.append(os.fsdecode(line))
    second(system.mount("cgroup", version=2), 800 * MB, used=300 * MB)
    assert system.left() == 500 * MB


@pytest.fixture
def limited_group() -> Iterator[Path]:
    """Make a group of this machine that may hold 300 MB, of the version by which it limits memory."""
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    path = next((path for _, controllers, path in own if controllers == "memory"), None)
    above = mounted_at("cgroup2") if path is None else mounted_at("cgroup", "memory") / path.lstrip("/")
    group = above / f"unbroken-test-{os.getpid()}"
    try:
        if path is None:
            # Directly below the mount: a group with processes gives none below it a limit, except for the uppermost one.
            (above / "cgroup.subtree_control").write_text("+memory")
        group.mkdir()
    except OSError as error:
        without_a_group(str(error))
    try:
        (group / ("memory.max" if path is None else "memory.limit_in_bytes")).write_text(str(300 * MB))
        yield group
    finally:
        group.rmdir()


def mounted_at(kind: str, option: str = "") -> Path:
    """Return where a hierarchy of groups is mounted."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        found, _, options = after.split(maxsplit=2)
        if found == kind and (not option or option in options.split(",")):
            return Path(before.split()[4])
    return without_a_group(f"no {kind} is mounted")


def without_a_group(why: str) -> NoReturn:
    """Skip the test. In CI, which is root on a machine with control groups, there is always a group."""
    told = f"no control group can be made here: {why}"
    if os.environ.get("CI") == "true":
        pytest.fail(told)
    pytest.skip(told)


ASK = "from unbroken.engine.memory_limit import free_share; print(free_share())"


def test_a_process_in_a_group_knows_its_limit(limited_group: Path) -> None:
    entered = f"import os; open('{limited_group}/cgroup.procs', 'w').write(str(os.getpid())); {ASK}"
    told = subprocess.run([sys.executable, "-c", entered], capture_output=True, text=True, check=True)
    assert 0 < int(told.stdout) <= 150 * MB


def test_a_limit_of_the_address_space_counts() -> None:
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({400 * MB}, {resource.RLIM_INFINITY})); {ASK}"
    told = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True, check=True)
    assert 0 < int(told.stdout) < 200 * MB


def test_a_name_that_was_cut_in_a_letter_is_no_matter() -> None:
    cut = f"open('/proc/self/comm', 'wb').write('обучение'.encode()[:15]); {ASK}"
    told = subprocess.run([sys.executable, "-c", cut], capture_output=True, text=True, check=True)
    assert int(told.stdout) > 0
