"""What an older version has written is read through its migrations, and never rewritten.

There is no released version yet, so the tests bring their own: the present format counts as a later one that has
renamed a field.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from unbroken.errors import CorruptObject, UnsupportedFormat
from unbroken.format import document, migrations, wire
from unbroken.format.manifest import DocumentFormat
from unbroken.format.migrations import Migration
from unbroken.format.records import Pending
from unbroken.repo.repository import Repository
from unbroken.state.snapshot import Component
from unbroken.types import Step

GOLDEN = Path(__file__).parent.parent / "golden" / "v0"
NOW = 2


def of_records(plain: dict[str, Any]) -> dict[str, Any]:
    """Version 0 called the step of a pending save `at`, if it knew of any."""
    if plain["record"] == "pending" and "at" in plain:
        plain["step"] = plain.pop("at")
    return plain


def counted(plain: dict[str, Any]) -> dict[str, Any]:
    if plain["record"] == "pending":
        plain["step"] += 1000
    return plain


def of_documents(plain: dict[str, Any]) -> dict[str, Any]:
    """Version 0 called the roots `tree`."""
    plain["roots"] = plain.pop("tree")
    return plain


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """This package is at version 2 of the format, and knows how to read 0 and 1."""
    chain = (Migration(reads=0, record=of_records, document=of_documents), Migration(reads=1, record=counted))
    monkeypatch.setattr(migrations, "MIGRATIONS", chain)
    monkeypatch.setattr(wire, "FORMAT_VERSION", NOW)
    monkeypatch.setattr(document, "FORMAT_VERSION", NOW)


def pending(version: int, **fields: object) -> bytes:
    return msgspec.json.encode({"record": "pending", "version": version, **fields})


@pytest.mark.usefixtures("later")
def test_a_record_goes_through_every_version_up_to_the_present_one() -> None:
    assert wire.decode(pending(0, at=7), Pending).step == 1007
    assert wire.decode(pending(1, step=7), Pending).step == 1007
    assert wire.decode(pending(2, step=7), Pending).step == 7


@pytest.mark.usefixtures("later")
def test_a_record_that_its_migration_cannot_read_is_damaged() -> None:
    with pytest.raises(CorruptObject, match="is not readable"):
        wire.decode(pending(1), Pending)
    with pytest.raises(UnsupportedFormat, match="version 3"):
        wire.decode(pending(3, step=7), Pending)


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("fmt", ["json", "msgpack"])
@pytest.mark.parametrize("text", ["plain", "\udcff\\"])
def test_a_document_of_an_older_version_is_read(fmt: DocumentFormat, text: str) -> None:
    written = document.encode(Component("policy", {"net": text}), [], fmt)
    coder: Any = msgspec.json if fmt == "json" else msgspec.msgpack
    plain = coder.decode(written)
    plain["version"], plain["tree"] = 0, plain.pop("roots")
    found = document.decode(coder.encode(plain), fmt)
    assert (found.component, found.roots) == ("policy", {"net": text})
    plain["tree"] = "no tree"
    with pytest.raises(CorruptObject, match="is not readable"):
        document.decode(coder.encode(plain), fmt)


def test_a_whole_run_of_the_version_before_is_read_where_nothing_can_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = [(c.step, c.sequence) for c in Repository.open(GOLDEN, "golden").commits()]
    monkeypatch.setattr(migrations, "MIGRATIONS", (Migration(reads=0),))
    monkeypatch.setattr(wire, "FORMAT_VERSION", 1)
    monkeypatch.setattr(document, "FORMAT_VERSION", 1)
    repository = Repository.open(GOLDEN, "golden")
    assert [(c.step, c.sequence) for c in repository.commits()] == before
    assert all(repository.verify(commit) == [] for commit in repository.commits())
    assert {commit.step for commit in repository.commits()} == {Step(0), Step(200), Step(300)}


def test_migrations_stand_in_order_and_lead_to_the_present_version() -> None:
    reads = [migration.reads for migration in migrations.MIGRATIONS]
    assert reads == list(range(1, wire.FORMAT_VERSION))
