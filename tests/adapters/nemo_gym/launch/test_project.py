"""Which configurations are copied beside the wrapped servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from unbroken.adapters.nemo_gym.launch import project


def test_nothing_is_written_outside_of_the_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, out = tmp_path / "work" / "home", tmp_path / "wrapped" / "out"
    (home / "configs").mkdir(parents=True)
    out.mkdir(parents=True)
    (home / "configs" / "a.yaml").write_text("a")
    (home / "b.yaml").write_text("b")
    (home.parent / "c.yaml").write_text("c")
    paths = ["configs/a.yaml", "configs/../b.yaml", "../c.yaml", "nowhere.yaml"]
    project._copy_configurations(paths, target=out, home=home)
    assert sorted(p.relative_to(tmp_path).as_posix() for p in (tmp_path / "wrapped").rglob("*.yaml")) == [
        "wrapped/out/b.yaml",
        "wrapped/out/configs/a.yaml",
    ]
    assert f"by its full path, {home.parent / 'c.yaml'}" in capsys.readouterr().err
