"""What the fuzzing starts from."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import unbroken.format

TOP = Path(__file__).parent.parent.parent


def written() -> set[str]:
    """Return the tags of all records that are declared in the layer of the format, as its files say it."""
    found: set[str] = set()
    for path in Path(unbroken.format.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found |= {
                    one.value.value
                    for one in node.keywords
                    if one.arg == "tag"
                    and isinstance(one.value, ast.Constant)
                    and isinstance(one.value.value, str)
                }
    return found


def test_a_sample_of_every_kind_of_record_is_among_them() -> None:
    script = "from fuzz.seeds import kinds; print(*kinds())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=TOP, check=True)
    assert written()
    assert written() <= set(done.stdout.split())
