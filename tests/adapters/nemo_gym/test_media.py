"""Media: kept once, checked when read, and taken out of bodies so that not one byte of them changes."""

from __future__ import annotations

import base64
import errno
import json
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unbroken.adapters.nemo_gym.media import LEAST, Media
from unbroken.errors import CorruptObject, ObjectMissing, StoreFull
from unbroken.testing.faulty_store import Stopped
from unbroken.testing.faulty_system import FailingSystem, RecordingSystem, StoppingSystem, fail

IMAGE = bytes(range(256)) * 20


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Media:
    return Media(tmp_path_factory.mktemp("media"))


def url(data: bytes, mime: str = "image/png") -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def test_what_was_put_is_there_once_and_for_its_owner_only(tmp_path: Path) -> None:
    media = Media(tmp_path / "a" / "media")
    digest = media.put(IMAGE)
    assert (
        digest == media.put(IMAGE) == Media(tmp_path / "a" / "media").put(IMAGE) == blake3(IMAGE).hexdigest()
    )
    assert media.get(digest) == IMAGE
    (file,) = (tmp_path / "a" / "media").iterdir()
    assert file.name == digest
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_an_empty_blob_is_one(media: Media) -> None:
    assert media.get(media.put(b"")) == b""


def test_a_second_put_of_the_same_costs_no_call(tmp_path: Path) -> None:
    system = RecordingSystem()
    media = Media(tmp_path, system=system)
    media.put(IMAGE)
    calls = len(system.calls)
    assert ("fsync", str(tmp_path)) in system.calls
    media.put(IMAGE)
    assert len(system.calls) == calls


def test_a_blob_is_whole_or_not_there_wherever_its_writer_dies(tmp_path: Path) -> None:
    at = 0
    while True:
        system = StoppingSystem(at)
        folder = tmp_path / str(at)
        digest = blake3(IMAGE).hexdigest()
        try:
            Media(folder, system=system).put(IMAGE)
        except Stopped:
            pass
        try:
            assert Media(folder).get(digest) == IMAGE
        except ObjectMissing:
            assert system.stopped
        assert Media(folder).put(IMAGE) == digest
        assert Media(folder).get(digest) == IMAGE
        if not system.stopped:
            break
        at += 1
    assert at > 4


def test_a_damaged_blob_is_refused_and_put_again_whole(tmp_path: Path) -> None:
    digest = Media(tmp_path).put(IMAGE)
    (tmp_path / digest).write_bytes(b"?" + IMAGE[1:])
    with pytest.raises(CorruptObject, match="is damaged") as caught:
        Media(tmp_path).get(digest)
    assert caught.value.digest == digest
    assert Media(tmp_path).put(IMAGE) == digest
    assert Media(tmp_path).get(digest) == IMAGE


@pytest.mark.parametrize("digest", ["0" * 64, "", "../secret", "0" * 63, "A" * 64, "0" * 64 + "\n"])
def test_what_is_not_there_is_missing(media: Media, digest: str) -> None:
    with pytest.raises(ObjectMissing, match="There is no media"):
        media.get(digest)


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    media = Media(tmp_path, system=FailingSystem(fail("fsync", errno.ENOSPC, path=".tmp-")))
    with pytest.raises(StoreFull):
        media.lift(json.dumps({"image": url(IMAGE)}).encode())
    assert list(tmp_path.iterdir()) == []


def test_large_data_becomes_a_name_and_comes_back(media: Media) -> None:
    body = json.dumps(
        {"input": [{"image_url": url(IMAGE)}, {"image_url": url(IMAGE, "image/webp")}]}
    ).encode()
    lifted = media.lift(body)
    digest = blake3(IMAGE).hexdigest()
    assert json.loads(lifted) == {
        "input": [
            {"image_url": f"unbroken-media:{digest};image/png"},
            {"image_url": f"unbroken-media:{digest};image/webp"},
        ]
    }
    assert media.lower(lifted) == body
    assert Media.named(lifted) == {digest}
    assert Media.named(body) == set()


def test_data_in_json_inside_of_json_is_found(media: Media) -> None:
    body = json.dumps({"arguments": json.dumps({"image": url(IMAGE)})}).encode()
    lifted = media.lift(body)
    assert len(lifted) < 200
    assert media.lower(lifted) == body


def canonical(size: int) -> str:
    """Return usual base64 of exactly `size` characters, a multiple of four."""
    return base64.b64encode(b"\x17" * (size // 4 * 3)).decode()


@pytest.mark.parametrize(
    "text",
    [
        "data:image/png;base64," + canonical(LEAST - 4),
        "data:image/png;base64," + canonical(LEAST)[:-1],
        "data:image/png;base64," + canonical(LEAST) + "=",
        "data:image/png;base64," + canonical(LEAST)[:-2] + "F=",  # bits beyond the end are set
        "data:image/png;base64," + canonical(LEAST)[:-3] + "F==",
        "data:image/png;base64," + canonical(LEAST)[:2000] + "\\n" + canonical(LEAST),
        "data:image/png," + canonical(LEAST),
        " data:image/png;base64," + canonical(LEAST),
        "data:image/png;base64," + canonical(LEAST).replace("F", "-"),
        "data:" + "x" * 128 + ";base64," + canonical(LEAST),
    ],
)
def test_near_misses_stay_as_they_are(media: Media, text: str) -> None:
    body = b'{"a":"' + text.encode() + b'"}'
    assert media.lift(body) == body
    assert media.lower(body) == body


@pytest.mark.parametrize("size", [LEAST, LEAST + 4])
@pytest.mark.parametrize("mime", ["", "image/svg+xml;charset=utf-8", "x" * 127])
def test_the_smallest_that_is_lifted(media: Media, size: int, mime: str) -> None:
    body = f'["data:{mime};base64,{canonical(size)}"]'.encode()
    assert len(media.lift(body)) < 230
    assert media.lower(media.lift(body)) == body


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":"unbroken-media:"}',
        b'{"a":"unbroken-media:' + b"0" * 64 + b';image/png"}',
        b'{"a":"unbroken-media~:x"}',
        b'{"a":"unbroken-media~~~:x", "b":"unbroken-media:x"}',
        b'"unbroken-media"unbroken-media:"unbroken-media~"',
        b'"data:;base64,' + canonical(LEAST).encode() + b'"unbroken-media:x',
        b'"data:;base64,' + canonical(LEAST).encode() + b'"data:;base64,' + canonical(LEAST).encode() + b'"',
        b'"unbroken-media:' + b"0" * 64 + b';"data:;base64,' + canonical(LEAST).encode() + b'"',
    ],
)
def test_bodies_that_hold_names_already_come_back(media: Media, body: bytes) -> None:
    lifted = media.lift(body)
    assert media.lower(lifted) == body
    twice = media.lift(lifted)
    assert media.lower(media.lower(twice)) == body
    assert b"0" * 64 not in {digest.encode() for digest in Media.named(lifted)}


def test_a_body_with_a_name_that_cannot_be_is_refused(media: Media) -> None:
    with pytest.raises(CorruptObject, match="Lower only what was lifted"):
        media.lower(b'{"a":"unbroken-media:nonsense"}')


def test_a_missing_blob_is_said(media: Media) -> None:
    with pytest.raises(ObjectMissing, match="begin this rollout anew"):
        media.lower(b'{"a":"unbroken-media:' + b"0" * 64 + b';image/png"}')


PIECES = st.sampled_from(
    [
        b'"', b"\\", b"\\\"", b"~", b":", b";", b"data:", b'"data:image/png;base64,', b"unbroken-media", b'"unbroken-media:',
        b'"unbroken-media~:', canonical(LEAST).encode(), canonical(LEAST + 4).encode(), b"==", b"=", b";image/png",
        b'"' + url(IMAGE).encode() + b'"', blake3(IMAGE).hexdigest().encode(), b"\xff", b"{}",
    ]
)  # fmt: skip


@given(body=st.lists(PIECES | st.binary(max_size=3), max_size=12).map(b"".join))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=400, deadline=None)
def test_any_bytes_come_back(media: Media, body: bytes) -> None:
    lifted = media.lift(body)
    assert media.lower(lifted) == body
    for digest in Media.named(lifted):
        media.get(digest)
    assert media.lower(media.lower(media.lift(lifted))) == body


TEXT = st.text(max_size=8) | st.sampled_from(
    [
        url(IMAGE),
        url(IMAGE[:3073]),
        url(IMAGE[:3074]),
        "unbroken-media:x",
        "unbroken-media~:",
        "data:;base64,",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(value=JSON, escaped=st.booleans(), spaces=st.sampled_from([None, 1, 4]))
@settings(max_examples=200, deadline=None)
def test_any_json_comes_back_and_stays_json(
    media: Media, value: object, escaped: bool, spaces: int | None
) -> None:
    body = json.dumps(value, ensure_ascii=escaped, indent=spaces).encode("utf-8", "surrogatepass")
    lifted = media.lift(body)
    assert media.lower(lifted) == body
    json.loads(lifted)
    assert b";base64,AAEC" not in lifted
