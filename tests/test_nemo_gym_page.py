"""docs/nemo-gym.md, as far as it can be checked without NeMo Gym: options, errors, words, and what it quotes.

Its blocks run in tests/nemo_gym/test_page.py.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, get_args

import pytest

import unbroken.nemo_gym
from tests.pages import ROOT, blocks, not_in_its_source, source_of
from unbroken.adapters.nemo_gym import control, words
from unbroken.adapters.nemo_gym.launch.up import up
from unbroken.adapters.nemo_gym.trainer.ledger import Outcome
from unbroken.repo.keys import VARIABLE

PAGE = "docs/nemo-gym.md"
TEXT = (ROOT / PAGE).read_text()


def section(title: str) -> str:
    """Return what stands under a heading."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", TEXT, flags=re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def table(introduction: str) -> dict[str, str]:
    """Return option -> default of the table behind a line of the section on options."""
    _, _, after = section("Options").partition(introduction)
    rows = after.split("\n\n")[1]
    return dict(re.findall(r"^\| `(\w+)` \| `?(.*?)`? \|", rows, flags=re.MULTILINE))


@pytest.mark.parametrize(
    ("introduction", "face"),
    [
        ("`checkpointed(cls, …)`", unbroken.nemo_gym.checkpointed),
        ("`Servers(config, …)`", unbroken.nemo_gym.Servers),
        ("`Gym(servers, …)`", unbroken.nemo_gym.Gym),
        ("`RolloutQueue(gym, rows, …)`", unbroken.nemo_gym.RolloutQueue),
    ],
)
def test_every_option_is_in_its_table_with_its_default(introduction: str, face: Callable[..., Any]) -> None:
    real = {
        name: "required"
        if parameter.default is parameter.empty
        else repr(parameter.default).replace("'", '"')
        for name, parameter in inspect.signature(face).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert table(introduction) == real


def test_every_variable_is_in_its_table() -> None:
    assert table("Variables:").keys() == {words.DIRECTORY, words.PATIENCE, words.START, VARIABLE}


def test_every_word_is_explained() -> None:
    for word in (*get_args(control.Capability), *get_args(control.Tier), *get_args(Outcome)):
        assert f"`{word}`" in TEXT, word


def test_options_of_the_command_exist() -> None:
    known = {name.replace("_", "-") for name in inspect.signature(up).parameters} | {"dir"}
    command = section("2. With our launcher")
    assert set(re.findall(r"`--([a-z-]+)`", command)) <= known


def test_every_error_it_names_is_raised_somewhere() -> None:
    """The text of its table stands in a file of ours, but for what is filled in."""
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    cells = re.findall(r"^\| (`.+?) \| ", section("Troubleshooting"), flags=re.MULTILINE)
    told = [
        text for cell in cells if "JSONDecodeError" not in cell for text in re.findall(r"`([^`]+)`", cell)
    ]
    assert len(told) > 20
    assert [text for text in told if text not in source] == []


def test_what_is_taken_from_an_example_stands_in_it() -> None:
    quoted = [(text, source) for _, text in blocks(PAGE) if (source := source_of(text)) is not None]
    assert [source.name for _, source in quoted] == ["nemo_gym_ray_train.py"]
    assert [line for text, source in quoted for line in not_in_its_source(text, source)] == []


def test_the_version_it_names_is_the_one_that_is_installed() -> None:
    found = re.search(r"nemo-gym>=([\d.]+),<([\d.]+)", (ROOT / "pyproject.toml").read_text())
    assert found is not None
    assert f"Tested with NeMo Gym {found[1]}" in TEXT
