"""`unbroken prove` as a person and as a machine sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest

from tests.cli.command import unbroken
from tests.proving.scripts import write_script


def test_equal_is_told_and_is_exit_status_0(tmp_path: Path) -> None:
    answer = unbroken("prove", "--kills", 1, "--", *write_script(tmp_path), cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert answer.out.splitlines()[-1].endswith("train.py: equal")
    assert "resumed from step" in answer.out
    assert "resume from a checkpoint after step 0: 1 of 1." in answer.out
    assert "--verbose" in answer.out
    assert "wall times of episodes" not in answer.out
    undisturbed, killed, kill, comparison = answer.err.splitlines()
    assert undisturbed == "unbroken: undisturbed run begins"
    assert killed == "unbroken: killed run begins: 1,500 steps"
    assert kill.startswith("unbroken: kill 1 at step ")
    assert comparison.startswith("unbroken: comparison")


def test_what_is_not_compared_is_listed_on_demand(tmp_path: Path) -> None:
    answer = unbroken("prove", "--kills", 1, "--verbose", "--", *write_script(tmp_path), cwd=tmp_path)
    assert "wall times of episodes" in answer.out


def test_a_part_that_is_approximate_is_named_beside_equal(tmp_path: Path) -> None:
    script = write_script(tmp_path, before="known = {'a', 'b'}", track="known=known")
    answer = unbroken("prove", "--kills", 1, "--", *script, cwd=tmp_path)
    assert answer.code == 0, answer.err
    last = answer.out.splitlines()[-1]
    assert "train.py: equal as far as captured: training_state is approximate: known: a set" in last


def test_a_part_that_is_not_captured_proves_nothing(tmp_path: Path) -> None:
    script = write_script(tmp_path, before="bag = {'left': (n for n in range(9))}", track="bag=bag")
    answer = unbroken("prove", "--kills", 1, "--", *script, cwd=tmp_path)
    assert answer.code == 2, answer.err
    last = answer.out.splitlines()[-1]
    assert "train.py: not proved" in last
    assert "training_state is not captured: bag/left" in last
    seen = unbroken("prove", "--kills", 1, "--json", "--", *script, cwd=tmp_path).json
    assert (seen["verdict"], seen["equal"]) == ("not proved", False)


def test_different_for_machines_is_exit_status_1(tmp_path: Path) -> None:
    script = write_script(tmp_path, inside="weights[7] += os.getpid()")
    answer = unbroken("prove", "--kills", 1, "--json", "--keep", "proof", "--", *script, cwd=tmp_path)
    assert answer.code == 1, answer.err
    seen = answer.json
    assert not seen["equal"]
    (final,) = seen["finals"]
    assert [(row["component"], row["equal"]) for row in final["components"]] == [
        ("rng_states", True),
        ("training_state", False),
    ]
    assert seen["starts"][0]["kill"]["step"] > seen["starts"][0]["kill"]["committed"]
    assert seen["left_out"]
    assert (seen["verdict"], seen["resumed"]) == ("different", 1)


def test_a_proof_that_cannot_be_carried_out_is_exit_status_2(tmp_path: Path) -> None:
    script = write_script(tmp_path, before="sys.exit('no data')")
    answer = unbroken("prove", "--json", "--keep", "proof", *script, cwd=tmp_path)
    assert answer.code == 2
    assert answer.json["error"]["kind"] == "Unproved"
    assert "| no data" in answer.err


def test_what_a_failure_leaves_behind_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    answer = unbroken("prove", *write_script(tmp_path, before="sys.exit('no data')"), cwd=tmp_path)
    (left,) = tmp_path.glob("unbroken-prove-*")
    assert answer.code == 2
    assert f"{left} is kept for you to look at, and yours to delete" in answer.err


def test_options_of_the_script_are_its_own(tmp_path: Path) -> None:
    script = ("sh", "-c", "echo $0 $1 >&2; exit 9", "--json", "--kills")
    answer = unbroken("prove", "--keep", "proof", "--", *script, cwd=tmp_path)
    assert answer.code == 2
    assert "exit status 9" in answer.err
    assert "| --json --kills" in answer.err


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pid")
    script = write_script(
        tmp_path, before="Path('pid').write_text(str(os.getpid())); import time; time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "unbroken", "prove", "--json", "--", *script],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    pid = int((tmp_path / "pid").read_text())  # waits for the script
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=280)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert not Path(f"/proc/{pid}").exists()
    assert not list(tmp_path.glob("unbroken-prove-*"))
    assert msgspec.json.decode(out) == {"error": {"kind": "Interrupted", "message": "interrupted."}}
