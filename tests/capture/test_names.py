"""What code does with names is read from bytecode, which each Python writes in its own way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.capture import names_script
from tests.compat.test_pythons import PACKAGES, interpreter
from unbroken.capture import names


@pytest.mark.parametrize("version", ["this", *PACKAGES])
def test_every_python_writes_it_so_that_it_is_understood(version: str) -> None:
    python = Path(sys.executable) if version == "this" else interpreter(version)
    done = subprocess.run(
        [python, "-I", names_script.__file__, str(names.__file__)],
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ran, *wrong = done.stdout.splitlines()
    assert version == "this" or ran.startswith(version)
    assert wrong == []
