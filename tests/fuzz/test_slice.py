"""A bounded part of `make fuzz`, and whether its guard hears what it must."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from unbroken.inspection.target import split

TOP = Path(__file__).parent.parent.parent
DECODERS = (
    "records", "history", "manifest", "meta", "birth", "document-json", "document-msgpack", "laid-over", "index",
    "pack", "chunk-list", "blob", "pickle", "dtype", "gym-log", "configuration", "neutral", "names",
)  # fmt: skip


def said(*words: str) -> Any:
    """Return what a process of its own has said: an audit hook cannot be taken away again."""
    environment = {**os.environ, "PYTHONPATH": str(TOP)}
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        cwd=TOP,
        env=environment,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def seen() -> Any:
    return said("-m", "fuzz.slice")


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_answers_every_input_with_a_value_or_an_error_of_ours(seen: Any, name: str) -> None:
    assert seen[name]["found"] == []
    assert seen[name]["refused"] > 0
    assert seen[name]["accepted"] > 0, "no mutation gets past the first check"


def test_every_decoder_is_in_the_slice(seen: Any) -> None:
    assert tuple(seen) == DECODERS


def test_the_guard_hears_whatever_a_decoder_must_not_do() -> None:
    told = said(str(Path(__file__).with_name("guard_script.py")))
    assert told.pop("accepts") == "True"
    assert told.pop("refuses") == "False"
    wanted = {
        "another error": "IndexError", "runs code": "compile", "opens a file": "/etc/passwd", "imports": "ModuleNotFoundError",
        "takes memory": "MemoryError", "takes long": "it took",
    }  # fmt: skip
    assert told.keys() == wanted.keys()
    for name, words in wanted.items():
        assert told[name].startswith("found: "), name
        assert words in told[name]


def test_a_word_that_is_too_long_for_a_path_names_a_step_of_it() -> None:
    """Found by the fuzzer: it was asked whether the whole of it exists."""
    assert split("x" * 5000 + "@latest") == ("x" * 5000, "latest")
