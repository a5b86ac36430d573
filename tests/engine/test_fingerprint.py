"""What may change low bits is recorded and compared; nothing else is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from unbroken.engine.fingerprint import differences, fingerprint, instruction_set, versions


def test_it_names_the_cpu_and_what_the_framework_adds() -> None:
    found = fingerprint({"torch threads": "4"})
    assert found["torch threads"] == "4"
    assert found["machine"]
    assert int(found["cores"]) >= 1


def test_equal_surroundings_have_no_differences() -> None:
    assert differences(fingerprint(), fingerprint(), versions(), versions()) == []


def test_another_cpu_thread_count_and_library_are_told() -> None:
    told = differences(
        {"instruction set": "avx2", "torch threads": "1"},
        {"instruction set": "avx2 avx512f", "torch threads": "2", "OMP_NUM_THREADS": "2"},
        {"numpy": "2.4.0", "unbroken": "0.1", "blake3": "1.0", "only_then": "1"},
        {"numpy": "2.4.1", "unbroken": "0.2", "blake3": "1.1", "only_now": "1"},
    )
    assert told == [
        "OMP_NUM_THREADS is 2 and was unset",
        "instruction set is avx2 avx512f and was avx2",
        "torch threads is 2 and was 1",
        "numpy is 2.4.1 and was 2.4.0",
    ]


def test_the_instruction_set_is_read_from_the_kernel(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags\t\t: fpu avx2 sse4_2 avx512f fma\n")
    assert instruction_set(cpuinfo) == ("sse4_2", "fma", "avx2", "avx512f")
    assert instruction_set(tmp_path / "missing") == ()


def test_versions_import_nothing() -> None:
    script = (
        "import sys, numpy; from unbroken.engine.fingerprint import versions; before = set(sys.modules);"
        "found = versions(); assert set(sys.modules) == before, set(sys.modules) - before;"
        "assert 'numpy' in found and 'python' in found and 'torch' not in found, found"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
