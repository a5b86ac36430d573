"""What changes the low bits of a computation without any code changing.

Instruction set, thread counts and library versions are recorded with every checkpoint. A resume under
other ones is allowed and warned of: sums are then added in another order, and the run goes on as well
as before but not bit for bit as it would have.

Not promised: completeness. Two machines with equal fingerprints may still differ in microcode.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

_FLAGS = ("sse4_2", "fma", "f16c", "avx", "avx2", "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "avx512_vnni",
          "amx_tile", "amx_bf16", "asimd", "asimdhp", "asimddp", "bf16", "sve", "sve2")  # fmt: skip
"""Instruction sets that numerical libraries choose their kernels by."""

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA",
              "ATEN_CPU_CAPABILITY", "NPY_DISABLE_CPU_FEATURES")  # fmt: skip
_OURS = frozenset({
    "blake3", "click", "msgspec", "obstore", "prometheus_client", "pydantic", "pydantic_core", "rich", "typer", "unbroken",
    "yaml", "zstandard",
})  # fmt: skip
"""What saving itself uses. It computes nothing of a training, so another version changes no bit of one."""


def versions() -> dict[str, str]:
    """Return the version of Python and of every imported package that states one."""
    found = {"python": platform.python_version()}
    for name, module in list(sys.modules.items()):
        if "." in name or name.startswith("_") or name in sys.stdlib_module_names:
            continue
        # Through __dict__, since asking a lazy module for an attribute would import it.
        version = getattr(module, "__dict__", {}).get("__version__")
        if isinstance(version, str):
            found[name] = str(version)
    return dict(sorted(found.items()))


def fingerprint(threads: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the numerical surroundings of this process.

    `threads` are counts that only a framework knows (it was asked by whoever may import it).
    """
    found = {"machine": platform.machine(), "instruction set": " ".join(instruction_set())}
    found["cores"] = str(_cores())
    found |= {name: os.environ[name] for name in _VARIABLES if os.environ.get(name)}
    found |= dict(threads or {})
    return found


def differences(
    saved: Mapping[str, str],
    now: Mapping[str, str],
    saved_versions: Mapping[str, str],
    now_versions: Mapping[str, str],
) -> list[str]:
    """Return one phrase for each thing that may change the low bits; empty if nothing does.

    A package that only one of the two processes had imported counts for nothing.
    """
    found = [
        f"{name} is {now.get(name) or 'unset'} and was {saved.get(name) or 'unset'}"
        for name in sorted({*saved, *now})
        if saved.get(name) != now.get(name)
    ]
    found += [
        f"{name} is {now_versions[name]} and was {saved_versions[name]}"
        for name in sorted({*saved_versions} & {*now_versions} - _OURS)
        if saved_versions[name] != now_versions[name]
    ]
    return found


def instruction_set(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """Return which of the instruction sets that matter this CPU has; empty where nobody says."""
    try:
        text = cpuinfo.read_text("ascii", "replace")
    except OSError:
        return ()
    for line in text.splitlines():
        name, _, flags = line.partition(":")
        if name.strip().lower() in ("flags", "features"):
            present = frozenset(flags.split())
            return tuple(flag for flag in _FLAGS if flag in present)
    return ()


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not every system has it
        return os.cpu_count() or 1
