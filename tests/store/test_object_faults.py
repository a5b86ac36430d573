"""What networks do to requests and answers, between an object store and a real server."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator

import pytest

from tests.repo.states import meta, snapshot
from tests.store.proxy import Fault, Proxy, Request, Rule, when
from tests.store.servers import SECRET, Server
from unbroken.errors import ConfigError, ObjectMissing, StoreDenied, StoreError, StoreUnavailable
from unbroken.format.buffers import Content
from unbroken.repo.fencing import create_only
from unbroken.repo.repository import Repository
from unbroken.store.object import ObjectStore
from unbroken.store.retry import Retry

AT_ONCE = Retry(first=0.001, sleep=lambda seconds: None)
PART = 5 << 20
"""The least that S3 takes as a part."""
LOST = [Fault.LOST, Fault.LOST_503]


def nothing(request: Request) -> None:
    """Let every request pass."""


@pytest.fixture
def place(seaweedfs: Server) -> str:
    return seaweedfs.place()


@pytest.fixture
def store(place: str, through: Proxy) -> ObjectStore:
    """A store behind the proxy that does not wait between two attempts."""
    return ObjectStore(place, below="run", retry=AT_ONCE, part=PART)


@pytest.fixture
def beside(place: str, store: ObjectStore, seaweedfs: Server, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The same store, past the proxy."""
    for name, value in seaweedfs.environment().items():
        monkeypatch.setenv(name, value)
    return ObjectStore(place, below="run")


@pytest.mark.parametrize("fault", [*LOST, Fault.BUSY, Fault.REFUSED])
def test_what_fails_once_is_done_again(store: ObjectStore, through: Proxy, fault: Fault) -> None:
    calls: list[tuple[Callable[[], object], object]] = [
        (lambda: store.put("a/k", b"0123456789"), None),
        (lambda: store.get("a/k"), b"0123456789"),
        (lambda: store.get_range("a/k", 2, 3), b"234"),
        (lambda: store.size("a/k"), 10),
        (lambda: store.list("a"), ["a/k"]),
        (store.children, ["a"]),
        (lambda: store.delete("a/k"), None),
        (store.list, []),
    ]
    for call, expected in calls:
        before = len(through.requests)
        through.rule = when(fault, times=1)
        assert call() == expected
        failed, *later = through.requests[before:]
        again = [
            request for request in later if (request.method, request.target) == (failed.method, failed.target)
        ]
        assert len(again) == 1


def test_what_keeps_failing_is_given_up_after_bounded_attempts(seaweedfs: Server, through: Proxy) -> None:
    paused: list[float] = []
    store = ObjectStore(seaweedfs.place(), retry=Retry(attempts=6, sleep=paused.append, draw=lambda: 1.0))
    through.rule = when(Fault.BUSY)
    with pytest.raises(StoreUnavailable, match=r"\(503\).*tried 6 times") as caught:
        store.get("k")
    assert caught.value.key == "k"
    assert len(through.requests) == 6
    assert paused == [0.1, 0.2, 0.4, 0.8, 1.6]


@pytest.mark.parametrize("fault", LOST)
def test_a_creation_without_an_answer_is_never_called_lost(
    store: ObjectStore, through: Proxy, fault: Fault
) -> None:
    through.rule = when(fault, method="PUT", times=1)
    with pytest.raises(StoreUnavailable, match="not known"):
        store.put_if_absent("commits/1", b"mine")
    assert store.get("commits/1") == b"mine"


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("times", [1, 3, 100])
def test_a_commit_without_an_answer_is_recognized_as_ones_own(
    store: ObjectStore, through: Proxy, fault: Fault, times: int
) -> None:
    through.rule = when(fault, method="PUT", times=times)
    assert create_only(store, "commits/1", b"mine") is True
    assert store.get("commits/1") == b"mine"


@pytest.mark.parametrize("fault", [*LOST, Fault.BUSY])
def test_anothers_commit_stays_anothers(store: ObjectStore, through: Proxy, fault: Fault) -> None:
    store.put("commits/1", b"theirs")
    through.rule = when(fault, method="PUT", times=1)
    assert create_only(store, "commits/1", b"mine") is False
    assert store.get("commits/1") == b"theirs"


@pytest.mark.parametrize("fault", [Fault.BUSY, Fault.REFUSED, Fault.CONFLICT])
def test_a_creation_that_never_arrived_is_made_and_ours(
    store: ObjectStore, through: Proxy, fault: Fault
) -> None:
    through.rule = when(fault, method="PUT", times=2)
    assert store.put_if_absent("commits/1", b"mine") is True


def test_a_download_that_is_cut_off_is_never_taken_for_whole(store: ObjectStore, through: Proxy) -> None:
    content = bytes(range(256)) * 60_000  # 15 MB: three ranges
    store.put("k", content)
    reads: list[Callable[[], bytes]] = [
        lambda: store.get("k"),
        lambda: store.get_range("k", 1000, 3_000_000),
        lambda: read_into(store, len(content)),
    ]
    for read in reads:
        expected = read()
        through.rule = when(Fault.CUT, method="GET", times=1)
        assert read() == expected
        through.rule = when(Fault.CUT, method="GET")
        with pytest.raises(StoreUnavailable):
            read()
        through.rule = nothing
    assert read_into(store, len(content)) == content
    assert read_into(store, 2 * len(content), at=PART) == content[PART:]


def at(number: int, fault: Fault) -> Rule:
    """Return a rule: this one request meets `fault`."""
    return lambda request: fault if request.number == number else None


def read_into(store: ObjectStore, size: int, *, at: int = 0) -> bytes:
    """Read into memory in three uneven pieces."""
    memory = bytearray(size)
    view = memoryview(memory)
    count = store.read_into("k", at, [view[:7], view[7 : size // 2], view[size // 2 :]])
    return bytes(memory[:count])


def test_an_object_that_is_replaced_while_it_is_read_is_never_mixed(
    store: ObjectStore, beside: ObjectStore, through: Proxy
) -> None:
    store.put("k", b"a" * (2 * PART))

    def replace(request: Request) -> None:
        if request.method == "GET":  # the first range; before it comes the question for the size
            through.rule = nothing
            beside.put("k", b"b" * (2 * PART))

    through.rule = replace
    with pytest.raises(StoreError, match="was replaced"):
        read_into(store, 2 * PART)


class TestUpload:
    """Large content, in parts."""

    content = bytes(range(256)) * 60_000

    def pieces(self) -> list[bytes]:
        return [self.content[at : at + 999_999] for at in range(0, len(self.content), 999_999)]

    @pytest.mark.parametrize("fault", [*LOST, Fault.BUSY, Fault.REFUSED])
    def test_a_part_that_fails_is_sent_again_alone(
        self, store: ObjectStore, through: Proxy, fault: Fault
    ) -> None:
        through.rule = when(fault, target="partNumber=2", times=2)
        store.put("k", iter(self.pieces()))
        assert store.get("k") == self.content
        sent = [request for request in through.requests if "partNumber" in request.target]
        assert len(sent) == 5

    @pytest.mark.parametrize("target", ["partNumber=2", "uploadId="])
    def test_a_torn_one_is_never_visible(self, store: ObjectStore, through: Proxy, target: str) -> None:
        store.put("before", b"the one before")
        for key in ("k", "before"):
            through.rule = when(Fault.REFUSED, target=target)
            with pytest.raises(StoreUnavailable):
                store.put(key, iter(self.pieces()))
            through.rule = nothing
        with pytest.raises(ObjectMissing):
            store.get("k")
        assert store.list() == ["before"]
        assert store.get("before") == b"the one before"

    def test_one_that_ends_without_an_answer_is_whole(self, store: ObjectStore, through: Proxy) -> None:
        through.rule = when(Fault.LOST, method="POST", target="uploadId=", times=1)
        store.put("k", self.content)
        assert store.get("k") == self.content


class TestSeveral:
    """Objects that go up together."""

    def test_the_last_name_appears_after_all_others(self, store: ObjectStore, through: Proxy) -> None:
        items = [(f"d/{number}", str(number).encode()) for number in range(30)]
        store.put_all(iter([*items, ("d/manifest", b"last")]))
        assert len(store.list("d")) == 31
        sent = [request.target.rpartition("/")[2] for request in through.requests if request.method == "PUT"]
        assert sent[-1] == "manifest"

    @pytest.mark.parametrize("last", [b"small", b"large" * PART], ids=["small", "large"])
    def test_without_one_of_them_the_last_is_not_written(
        self, store: ObjectStore, through: Proxy, last: bytes
    ) -> None:
        through.rule = when(Fault.BUSY, method="PUT", target="d/3")
        with pytest.raises(StoreUnavailable, match="d/3"):
            store.put_all([*((f"d/{number}", b"x") for number in range(6)), ("d/last", last)])
        assert "d/last" not in store.list()

    def test_content_is_read_to_its_end_before_the_next_is_asked_for(self, store: ObjectStore) -> None:
        read: list[int] = []

        def content(number: int, size: int) -> Iterator[bytes]:
            yield b"x" * size
            yield b"y" * size
            read.append(number)

        def items() -> Iterator[tuple[str, Content]]:
            for number, size in enumerate((10, PART, 10, PART)):
                yield f"d/{number}", content(number, size)
                assert read == list(range(number + 1))

        store.put_all(items())
        assert [store.size(key) for key in store.list()] == [20, 2 * PART, 20, 2 * PART]


class TestRun:
    """A whole run behind the proxy."""

    def test_a_listing_that_lags_hides_no_commit(self, store: ObjectStore, through: Proxy) -> None:
        repository = Repository.over(store, "job", create=True)
        with repository.writer() as writer:
            writer.write(snapshot(step=1), meta(1))
            assert [commit.step for commit in repository.commits()] == [1]
            writer.write(snapshot(step=2), meta(2))
            through.rule = when(Fault.STALE, method="GET", target="list-type")
            assert [commit.step for commit in repository.commits()] == [2, 1]
        with Repository.over(store, "job").writer() as writer:
            assert writer.epoch == 2
            writer.write(snapshot(step=3), meta(3))
        through.rule = nothing
        repository = Repository.over(store, "job")
        assert [commit.step for commit in repository.commits()] == [3, 2, 1]
        assert repository.stale() == []

    @pytest.mark.parametrize("fault", [Fault.LOST, Fault.LOST_503, Fault.BUSY, Fault.CUT])
    def test_a_save_survives_a_fault_at_any_request(
        self, seaweedfs: Server, through: Proxy, fault: Fault
    ) -> None:
        number, count = 0, 1
        while number < count:
            repository = Repository.over(ObjectStore(seaweedfs.place(), retry=AT_ONCE), "job", create=True)
            with repository.writer() as writer:
                start = len(through.requests)
                through.rule = at(start + number, fault)
                commit = writer.write(snapshot(step=5), meta(5))
                count = len(through.requests) - start - 1
                through.rule = nothing
                assert repository.commits() == [commit]
                assert repository.verify(commit) == []
            number += 1
        assert count > 8

    def test_the_later_writer_on_another_host_takes_the_run_over(self, store: ObjectStore) -> None: ...


@pytest.fixture
def rclone_store(rclone: Server, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    for name, value in rclone.environment().items():
        monkeypatch.setenv(name, value)
    return ObjectStore(rclone.place())


def test_a_store_that_ignores_preconditions_is_refused(rclone_store: ObjectStore) -> None:
    repository = Repository.over(rclone_store, "job", create=True)
    with pytest.raises(ConfigError, match="created only once") as caught:
        repository.writer()
    assert "conditional writes" in caught.value.hint
    assert rclone_store.list() == ["format.json"]


def test_a_store_that_keeps_them_passes_and_nothing_is_left(store: ObjectStore) -> None:
    store.probe()
    assert store.list() == []


def test_no_message_holds_a_secret(
    seaweedfs: Server, through: Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    place = seaweedfs.place()
    through.rule = when(Fault.BUSY)
    told = [repr(ObjectStore(place))]
    told += traceback.format_exception(failing(ObjectStore(place, retry=AT_ONCE)))
    through.rule = nothing
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another-key")
    error = failing(ObjectStore(place, retry=AT_ONCE))
    assert isinstance(error, StoreDenied)
    told += traceback.format_exception(error)
    assert "403" in str(error)
    for text in (*told, caplog.text):
        assert SECRET not in text
        assert "Signature=" not in text


def failing(store: ObjectStore) -> StoreError:
    with pytest.raises(StoreError) as caught:
        store.put("k", b"")
    return caught.value
