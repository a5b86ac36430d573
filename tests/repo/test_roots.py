"""What people give as the place of their runs: refused by the word they used, before anything is touched."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from unbroken.errors import ConfigError
from unbroken.repo.repository import Repository, jobs
from unbroken.repo.roots import BucketRoot, DirectoryRoot, root_of, state_directory
from unbroken.store.base import SupportsLocalHints


@pytest.mark.parametrize(
    "root",
    [
        *("", 5, None, b"runs", "a\0b", "~nobody-of-this-name/x", "x" * 256),
        *("ftp://host/runs", "https://bucket.s3.amazonaws.com/x", "s3://", "s3:///runs", "s3://[/x", "://x"),
        *("s3://bucket/a//b", "s3://bucket/../x", "s3://bucket/.hidden", "s3://bucket/x?versionId=1#y"),
    ],
)
def test_what_can_be_no_place_is_refused_by_the_callers_word(root: object) -> None:
    with pytest.raises(ConfigError, match="save_path") as caught:
        root_of(root, name="save_path")
    assert caught.value.hint
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "url", ["s3://key:hunter2@bucket/x", "s3://hunter2@bucket/x", "az://c/x?sig=hunter2"]
)
def test_a_secret_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="more than a bucket") as caught:
        root_of(url)
    assert "hunter2" not in str(caught.value)
    assert "environment" in caught.value.hint


@pytest.mark.parametrize(
    ("given", "url", "name"),
    [
        ("s3://bucket", "s3://bucket", "bucket"),
        ("s3://bucket/", "s3://bucket", "bucket"),
        ("S3://bucket/runs/dqn/", "s3://bucket/runs/dqn", "dqn"),
        ("gs://bucket/a b", "gs://bucket/a b", "a b"),
        ("az://container/x", "az://container/x", "x"),
        ("abfss://c@a.dfs.core.windows.net/x", "abfss://c@a.dfs.core.windows.net/x", "x"),
    ],
)
def test_a_url_names_a_place_in_a_bucket(given: str, url: str, name: str) -> None:
    root = root_of(given)
    assert root == BucketRoot(url)
    assert (root.text, root.name, root.run("job")) == (url, name, f"{url}/job")


def test_a_file_url_is_a_directory(tmp_path: Path) -> None:
    assert root_of(f"file://{tmp_path}/with%20space") == DirectoryRoot(tmp_path / "with space")


def test_home_is_resolved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert root_of("~/runs") == DirectoryRoot(tmp_path / "runs")


def test_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (loop, loop / "below"):
        with pytest.raises(ConfigError, match="symbolic links"):
            Repository.open(path, "job")
        with pytest.raises(ConfigError, match="symbolic links"):
            jobs(path)


def test_no_run_is_made_inside_of_another_one(tmp_path: Path) -> None:
    with Repository.open(tmp_path / "runs", "outer", create=True).writer():
        pass
    (tmp_path / "link").symlink_to(tmp_path / "runs" / "outer")
    before = sorted(tmp_path.rglob("*"))
    for root in ("runs/outer", "runs/outer/steps", "runs/outer/new/newer", "link"):
        with pytest.raises(ConfigError, match="would lie inside of the run"):
            Repository.open(tmp_path / root, "inner", create=True)
    assert sorted(tmp_path.rglob("*")) == before
    Repository.open(tmp_path / "runs", "beside", create=True)
    Repository.open(tmp_path / "runs" / "more", "below", create=True)
    assert jobs(tmp_path / "runs") == ["beside", "outer"]


def test_a_run_that_lies_inside_of_another_one_already_goes_on(tmp_path: Path) -> None:
    Repository.open(tmp_path / "runs" / "outer", "inner", create=True)
    with Repository.open(tmp_path / "runs", "outer", create=True).writer():
        pass
    Repository.open(tmp_path / "runs" / "outer", "inner", create=True)


def test_where_no_directory_can_be_made_another_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="/proc/runs cannot be made") as caught:
        Repository.open("/proc/runs", "job", create=True)
    assert "another directory" in caught.value.hint


@pytest.mark.parametrize("name", ["there", "not there", "file/below"])
def test_what_is_a_directory_or_may_become_one_holds_no_runs(name: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    assert jobs(tmp_path / name) == []


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"UNBROKEN_STATE_DIR": "/own", "XDG_STATE_HOME": "/xdg", "HOME": "/home/me"}, "/own"),
        ({"XDG_STATE_HOME": "/xdg", "HOME": "/home/me"}, "/xdg/unbroken"),
        ({"HOME": "/home/me"}, "/home/me/.local/state/unbroken"),
    ],
)
def test_hints_have_a_directory_on_this_machine(environment: dict[str, str], expected: str) -> None:
    assert state_directory(environment) == Path(expected)


def test_hints_of_two_runs_never_meet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UNBROKEN_STATE_DIR", str(tmp_path))
    stores = [
        root_of(url).store(job)
        for url in ("s3://a/x", "s3://b/x", "gs://a/x", "s3://a")
        for job in ("job", "job-2")
    ]
    paths = {store.hint_path("lock") for store in stores if isinstance(store, SupportsLocalHints)}
    assert len(paths) == len(stores)
    assert all(path.is_relative_to(tmp_path) for path in paths)
    assert list(tmp_path.iterdir()) == [], "nothing is made before it is needed"


def test_without_the_client_of_object_stores_its_installation_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "unbroken.store.object", raising=False)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ConfigError, match="needs obstore") as caught:
        Repository.open("s3://bucket/x", "job")
    assert caught.value.hint == "Run: pip install obstore"
