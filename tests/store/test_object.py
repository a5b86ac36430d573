"""What a person is told who has not said enough for a bucket to be opened. No server is needed."""

from __future__ import annotations

import os
import traceback

import pytest

from unbroken.errors import ConfigError, StoreError, StoreUnavailable
from unbroken.store.object import ObjectStore
from unbroken.store.retry import Retry


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)


def test_an_account_that_is_not_named() -> None:
    with pytest.raises(ConfigError, match="az://container/x cannot be opened") as caught:
        ObjectStore("az://container/x")
    assert caught.value.hint == "Set AZURE_STORAGE_ACCOUNT_NAME."


@pytest.mark.parametrize("url", ["s3://a b", "gs://a b/c", "az://a b/c", "s3://a:b/c", "s3://[x"])
def test_a_url_that_the_client_cannot_read_is_one_sentence(url: str) -> None:
    with pytest.raises(ConfigError, match="cannot be opened: it is not understood") as caught:
        ObjectStore(url)
    assert "s3://bucket/prefix" in caught.value.hint


def test_an_endpoint_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with pytest.raises(StoreError, match="AWS_ALLOW_HTTP=true"):
        ObjectStore("s3://bucket", retry=Retry(attempts=1)).get("k")


def test_an_address_that_is_a_secret_is_told_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
    monkeypatch.setenv("AZURE_STORAGE_SAS_KEY", "sv=2023-11-03&sp=rw&sig=hunter2")
    store = ObjectStore("az://container", retry=Retry(attempts=1))
    with pytest.raises(StoreUnavailable) as caught:
        store.get("k")
    told = "".join(traceback.format_exception(caught.value))
    assert "did not answer" in told
    assert "hunter2" not in told


def test_a_store_that_does_not_answer_is_named_with_the_variable_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": "http://user:hunter2@127.0.0.1:1/secret",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreUnavailable, match="did not answer") as caught:
        ObjectStore("s3://bucket", retry=Retry(attempts=2, sleep=lambda _: None)).get("k")
    assert caught.value.hint == (
        "It was asked at http://127.0.0.1:1, as AWS_ENDPOINT_URL says: is it up, and is that right?"
    )


def test_without_an_endpoint_the_variable_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy stands for a network that leads nowhere."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_PROXY_URL": "http://127.0.0.1:1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreUnavailable, match="did not answer") as caught:
        ObjectStore("s3://bucket", retry=Retry(attempts=1)).get("k")
    assert caught.value.hint.startswith("AWS_ENDPOINT_URL is not set, so Amazon S3 was asked")


def test_it_says_where_it_is() -> None:
    store = ObjectStore("gs://bucket/prefix/", below="run")
    assert store.where == "gs://bucket/prefix/run"
    assert repr(store) == "ObjectStore('gs://bucket/prefix/run')"
