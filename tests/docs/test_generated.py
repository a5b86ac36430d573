"""The pages that the code writes are in `docs/` as it would write them now."""

from __future__ import annotations

import re

import pytest

from docsite import api, generated
from unbroken.engine.configuration.names import DEMANDS, MEANS
from unbroken.engine.options import OPTIONS


@pytest.mark.parametrize("page", generated.PAGES)
def test_a_page_is_up_to_date(page: str) -> None:
    file = generated.DOCS / page
    assert file.read_text() == generated.text(page), "scripts/docs --write writes it anew"


def test_every_setting_and_every_key_of_the_file_has_a_row_that_says_what_it_does() -> None:
    page = (generated.DOCS / "reference/configuration.md").read_text()
    rows = [row.strip("| ").split(" | ") for row in re.findall(r"^\| `.*$", page, flags=re.MULTILINE)]
    names = {row[0].strip("`") for row in rows}
    assert OPTIONS | {"root", "job"} <= names
    assert {key.rpartition(".")[2] for key in {*MEANS, *DEMANDS}} <= names
    assert [row for row in rows if not re.search(r"\w", row[-1])] == []


def test_every_command_has_its_section_and_every_option_its_words() -> None:
    page = (generated.DOCS / "reference/cli.md").read_text()
    assert {"unbroken ls", "unbroken prove", "unbroken gym sessions", "unbroken key rotate"} <= set(
        re.findall(r"^#+ (.+)$", page, flags=re.MULTILINE)
    )
    rows = re.findall(r"^\| (`[^|]+`) \| (.*) \|$", page, flags=re.MULTILINE)
    assert len(rows) > 60
    assert [name for name, said in rows if not said.strip()] == []


def test_every_public_name_is_on_the_page_below_its_face() -> None:
    page = (generated.DOCS / "reference/api.md").read_text()
    shown = re.findall(r"^::: (\S+)$", page, flags=re.MULTILINE)
    public = {home for face in api.faces() for home in api.gathered(face).values()}
    assert set(shown) == public
    assert len(shown) == len(public)
    assert set(api.FACES) <= set(api.faces())
    assert [face for face in api.faces() if f"`{face}`" not in page] == []
