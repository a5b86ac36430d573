"""The page on configuration, and the README's file: what stands there can be read, and every key is told of."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import unbroken
from tests.pages import ROOT
from unbroken.engine.configuration import names
from unbroken.engine.configuration.effective import effective
from unbroken.engine.options import OPTIONS
from unbroken.engine.settings import Settings
from unbroken.inspection.listing import list_runs
from unbroken.inspection.target import default_root

PAGE = (ROOT / "docs" / "configuration.md").read_text()
README = (ROOT / "README.md").read_text()
FILES = [
    block
    for text in (PAGE, README)
    for block in re.findall(r"^```yaml\n(checkpoint:\n.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
]


def test_four_files_are_shown() -> None:
    assert len(FILES) == 4


@pytest.mark.parametrize("number", range(4))
def test_a_file_that_is_shown_can_be_used(number: int, tmp_path: Path) -> None:
    (tmp_path / "unbroken.yaml").write_text(FILES[number])
    settings = effective({"UNBROKEN_CONFIG": str(tmp_path / "unbroken.yaml")})
    assert settings != Settings(root=settings.root, job=settings.job)


def test_the_first_file_of_the_page_works_where_it_is_copied_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("unbroken.yaml").write_text(FILES[0])
    weights = np.zeros(2)
    run = unbroken.Run(quiet=True)
    run.track(weights=weights)
    for _ in run.steps(3):
        weights += 1
    (listed,) = list_runs(default_root()).runs
    assert [one.commit.step for one in listed.checkpoints] == [3, 0]


def test_every_key_of_the_paper_is_in_the_table_with_its_setting() -> None:
    rows = re.findall(r"^\| (`[\w., `]+`) \| (?:`(\w+)`|none) \|", PAGE, flags=re.MULTILINE)
    told = {key: setting for keys, setting in rows for key in re.findall(r"`([\w.]+)`", keys)}
    assert told == {**names.MEANS, **dict.fromkeys(names.DEMANDS, "")}


def test_every_setting_is_in_a_file_that_is_shown_under_its_name_or_that_of_the_paper() -> None:
    shown = "".join(FILES)
    other = {setting: key.rpartition(".")[2] for key, setting in names.MEANS.items()}
    for name in OPTIONS | {"root", "job"}:
        assert re.search(rf"^ +({name}|{other.get(name, name)}):", shown, flags=re.MULTILINE), name
