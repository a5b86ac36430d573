"""`unbroken config` shows every setting with its origin, and is the check of a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import unbroken
from unbroken.engine.options import OPTIONS


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROOT", "KEEP_LAST", "CONFIG"):
        monkeypatch.delenv(f"UNBROKEN_{name}", raising=False)


def rows(out: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.split()}


def test_without_a_file_everything_is_a_default_but_what_the_script_says(tmp_path: Path) -> None:
    answer = unbroken("config", "--print", cwd=tmp_path)
    assert answer.code == 0
    found = rows(answer.out)
    assert found.keys() >= OPTIONS | {"root", "job"}
    assert found["root"] == ["-", "script"]
    assert found["keep_last"] == ["5", "default"]
    assert found["every"] == ["max_loss=300,max_overhead=0.02", "default"]
    assert answer.out.endswith("no configuration file\n")


def test_each_value_is_shown_with_where_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unbroken.yaml").write_text(
        "checkpoint:\n  storage_path: filed\n  max_checkpoints: 7\n  best: loss:min\n"
        "  serialization:\n    compression: gzip\n"
    )
    monkeypatch.setenv("UNBROKEN_KEEP_LAST", "3")
    found = rows(unbroken("config", cwd=tmp_path).out)
    assert found["root"] == ["filed", "unbroken.yaml:2"]
    assert found["job"] == ["filed", "default"]
    assert found["keep_last"] == ["3", "UNBROKEN_KEEP_LAST"]
    assert found["best"] == ["loss:min", "unbroken.yaml:4"]
    assert found["compression"] == ["gzip", "unbroken.yaml:6"]
    assert found["settings"] == ["from", "unbroken.yaml"]


def test_a_machine_gets_the_same_as_one_object(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("checkpoint:\n  save_every_n_steps: 7\n  allow_changed: [b, a]\n")
    answer = unbroken("config", "--file", tmp_path / "mine.yaml", "--json", cwd=tmp_path).json
    assert answer["file"] == str(tmp_path / "mine.yaml")
    assert answer["settings"]["every"] == {"value": {"steps": 7}, "origin": f"{tmp_path}/mine.yaml:2"}
    assert answer["settings"]["allow_changed"]["value"] == ["a", "b"]
    assert answer["settings"]["signals"] == {"value": ["SIGTERM", "SIGUSR1", "SIGINT"], "origin": "default"}
    assert answer["settings"]["root"] == {"value": None, "origin": "script"}
    assert answer["settings"].keys() == OPTIONS | {"root", "job"}


def test_a_file_that_cannot_be_used_is_one_sentence_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "unbroken.yaml").write_text("checkpoint:\n  max_checkpoint: 7\n")
    answer = unbroken("config", cwd=tmp_path)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == (
        "unbroken: unbroken.yaml:2: checkpoint has no key 'max_checkpoint'. Did you mean max_checkpoints?\n"
    )


def test_the_schema_is_printed_for_editors(tmp_path: Path) -> None:
    shipped = Path(__file__).parents[2] / "schema" / "unbroken-config-1.json"
    assert unbroken("config", "--schema", cwd=tmp_path).json == json.loads(shipped.read_text())


def test_commands_look_where_the_file_says_that_runs_lie(tmp_path: Path, trained: Path) -> None:
    (tmp_path / "unbroken.yaml").write_text(f"checkpoint:\n  storage_path: {trained}/runs/tiny\n")
    listed = unbroken("ls", cwd=tmp_path)
    assert (listed.code, "tiny" in listed.out) == (0, True)
    assert unbroken("du", cwd=tmp_path).code == 0
