"""The terminal of the start page shows what was recorded, and what is recorded is still what happens."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from docsite import transcript
from docsite.transcript import Line


def test_the_picture_is_drawn_from_the_record() -> None:
    assert transcript.PICTURE.read_text() == transcript.drawn(transcript.recorded())


def test_the_record_shows_a_kill_a_resume_and_that_all_is_equal() -> None:
    lines = transcript.recorded()
    said = [line.text for line in lines if line.kind == "said"]
    assert [line.text for line in lines if line.kind == "typed"][:2] == ["python train.py"] * 2
    assert any("goes on at step" in text and "killed" in text for text in said)
    compared = [text.split() for text in said if re.search(r" (equal|different)\b", text)]
    assert len(compared) > 5
    assert {words[1] for words in compared} == {"equal"}


def test_the_picture_needs_nothing_from_elsewhere_and_respects_who_wants_no_motion() -> None:
    picture = transcript.PICTURE.read_text()
    ElementTree.fromstring(picture)
    assert re.findall(r"(?:href|src)=|url\(|<script|@import", picture) == []
    assert "prefers-reduced-motion" in picture
    moments = [float(after) for after in re.findall(r"animation-delay:([\d.]+)s", picture)]
    assert moments == sorted(moments)
    assert moments[-1] < 5


def test_a_long_line_is_broken_and_nothing_of_it_is_lost() -> None:
    words = [f"word{number}" for number in range(60)]
    picture = transcript.drawn([Line("said", " ".join(words)), Line("typed", "a <b>")])
    shown = [text for text in ElementTree.fromstring(picture).itertext() if text.strip()]
    assert [word for text in shown for word in text.split() if word.startswith("word")] == words
    assert max(map(len, shown[2:])) <= transcript.LETTERS + 4
    assert "a &lt;b&gt;" in picture


@pytest.mark.exactness
def test_who_does_it_again_sees_the_same_but_for_the_moment() -> None:
    def shape(lines: list[Line]) -> list[tuple[str, str]]:
        return [(line.kind, re.sub(r"\d[\d,]*", "#", line.text)) for line in lines]

    assert shape(transcript.record()) == shape(transcript.recorded())
