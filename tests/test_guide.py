"""The guide runs as it stands, from top to bottom, in one directory."""

from __future__ import annotations

import difflib
import re

import pytest

from tests.pages import ROOT, Stage, every_block

PAGE = "docs/guide.md"
GUIDE = (ROOT / PAGE).read_text()
BLOCKS = [block for block in every_block(PAGE) if block.kind in ("python", "console")]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """The directory that all blocks share."""
    pytest.importorskip("stable_baselines3")
    return Stage(tmp_path_factory.mktemp("guide") / "page")


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_blocks_run_in_their_order(number: int, stage: Stage) -> None:
    stage.play(BLOCKS[number])


def test_every_option_of_the_callback_is_in_its_table_with_its_default() -> None:
    pytest.importorskip("stable_baselines3")
    import inspect

    from unbroken.sb3 import CheckpointCallback

    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| `(.+?)` \|", GUIDE, flags=re.MULTILINE)
    told = {name: default for names, default in rows for name in re.findall(r"`(\w+)`", names)}
    real = {
        name: str(parameter.default) if parameter.default != "" else '""'
        for name, parameter in inspect.signature(CheckpointCallback).parameters.items()
    }
    assert {name: default.strip('"') or '""' for name, default in told.items()} == real


def test_what_a_program_in_the_manner_of_cleanrl_gains_is_what_the_guide_shows() -> None:
    shown = re.findall(r"^```diff\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL)
    ours, plain = (
        (ROOT / "examples" / "cleanrl" / name).read_text().splitlines()[1:]
        for name in ("ppo.py", "ppo_plain.py")
    )
    changed = [line for line in difflib.ndiff(plain, ours) if line[0] in "+-"]
    (told,) = shown
    assert sorted(told.splitlines()) == sorted(line[0] + line[2:] for line in changed)


def test_links_within_the_guide_lead_to_headings() -> None:
    headings = {
        re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^## (.+)$", GUIDE, flags=re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", GUIDE)) <= headings
