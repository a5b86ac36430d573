"""`unbroken key`, on runs of which two checkpoints hold pickles that were signed with different keys."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.command import unbroken
from tests.repo.states import meta, snapshot
from unbroken.format import manifest as manifests
from unbroken.repo.keys import held_keys
from unbroken.repo.repository import Repository
from unbroken.repo.vouching import Vouching, vouching


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("UNBROKEN_KEY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return tmp_path


def save(folder: Path, step: int, *, opaque: bool = True) -> None:
    repository = Repository.open(folder, "run", create=True)
    with repository.writer() as writer:
        writer.write(snapshot(step=step, opaque=opaque), meta(step))


def test_there_is_no_key_until_one_is_needed_or_made(home: Path) -> None:
    assert "no key yet" in unbroken("key", cwd=home).out
    assert unbroken("key", "--export", cwd=home).code == 2
    made = unbroken("key", "make", "--json", cwd=home).json
    shown = unbroken("key", "--json", cwd=home).json["keys"]
    assert [(key["name"], key["retired"]) for key in shown] == [(made["name"], False)]
    assert unbroken("key", "make", cwd=home).code == 2


def test_the_key_itself_is_shown_only_when_it_is_asked_for(home: Path) -> None:
    unbroken("key", "make", cwd=home)
    secret = (home / "home/unbroken/key").read_text()
    for words in ((), ("--json",), ("rotate",), ("rotate", "--json"), ("check", "--help")):
        answer = unbroken("key", *words, cwd=home)
        assert secret not in answer.out + answer.err


def test_what_is_exported_is_the_same_key_elsewhere(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(home, 1)
    line = unbroken("key", "--export", cwd=home).out.strip()
    shutil.rmtree(home / "home")
    assert unbroken("key", "check", "run", cwd=home).code == 1
    name, _, value = line.partition("=")
    monkeypatch.setenv(name, value)
    assert unbroken("key", "check", "run", cwd=home).code == 0
    assert unbroken("key", "--export", cwd=home).out.strip() == line


def test_each_checkpoint_is_told_with_the_key_that_has_signed_it(home: Path) -> None:
    save(home, 1, opaque=False)
    save(home, 2)
    unbroken("key", "rotate", cwd=home)
    save(home, 3)
    answer = unbroken("key", "check", "run", "--json", cwd=home)
    assert answer.code == 0
    verdicts = {row["step"]: row["verdict"] for row in answer.json["checkpoints"]}
    assert verdicts == {1: Vouching.NEEDLESS.value, 2: Vouching.FORMER.value, 3: Vouching.OURS.value}
    (retired,) = [key["name"] for key in unbroken("key", "--json", cwd=home).json["keys"] if key["retired"]]
    assert unbroken("key", "forget", retired, cwd=home).code == 0
    answer = unbroken("key", "check", "run", cwd=home)
    assert answer.code == 1
    assert retired in answer.out
    assert Vouching.OTHER.value in answer.out


def test_what_a_retired_key_has_signed_still_counts_as_ours(home: Path) -> None:
    save(home, 1)
    unbroken("key", "rotate", cwd=home)
    repository = Repository.open(home, "run")
    assert repository.signature_valid(repository.commits()[0]) is True


def test_a_forged_signature_is_told_from_one_of_another_key(home: Path) -> None:
    save(home, 1)
    repository = Repository.open(home, "run")
    manifest = repository.manifest(repository.commits()[0])
    changed = manifests.decode(manifests.encode(manifest).replace(b'"policy_weights"', b'"policy_weightz"'))
    assert vouching(manifest, held_keys()) is Vouching.OURS
    assert vouching(changed, held_keys()) is Vouching.FORGED
    assert vouching(changed, []) is Vouching.OTHER
