"""A checkpoint of one run is compared with one of another: chosen from the lists, shown at an address that can be sent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.browser.runs import make_many
from tests.repo.states import meta, snapshot
from tests.ui.serving import Pages, files, links, site_over, words
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.state.nodes import Dict
from unbroken.state.snapshot import Component, Snapshot

PAGE = "/runs/group~1b/difference?a=3&b=2&other=a"


def save(root: Path, job: str, *states: tuple[int, Snapshot], keep_last: int | None = None) -> None:
    repository = Repository.open(root, job, create=True)
    with repository.writer() as writer:
        for step, state in states:
            writer.write(state, meta(step, metrics={"reward": step / 8}))
        if keep_last is not None:
            writer.retain(plan_retention(repository.commits(), keep_last=keep_last))


def odd(step: int) -> Snapshot:
    """A state without a buffer, with a component and a leaf that the other run has not."""
    state = snapshot(step=step)
    extra = Component(name="extra", roots={"model": Dict(v={"only here": 7})})
    counters = Component(name="counters", roots={"model": Dict(v={"global_step": step, "turn": 1})})
    parts = {name: part for name, part in state.components.items() if name != "replay_buffer"}
    return replace(state, components={**parts, "extra": extra, "counters": counters})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Run `a` has the steps 10, 20, 30; run `b`, in a group, 5, 15, 25, of which it keeps two."""
    save(tmp_path, "a", *((step, snapshot(step=step)) for step in (10, 20, 30)))
    save(tmp_path / "group", "b", *((step, odd(step)) for step in (5, 15, 25)), keep_last=2)
    save(tmp_path, "c")
    return tmp_path


@pytest.fixture
def pages(root: Path) -> Iterator[Pages]:
    with site_over(root) as site:
        site.looking.glances(site.catalogue.runs(), seconds=60)
        yield Pages(site)


def compared(pages: Pages, *fields: tuple[str, str], run: str = "group~1b") -> str:
    """Send a form that compares, wait for the work, and return where the difference is shown."""
    answer = pages.post(f"/runs/{run}/difference", *fields)
    assert answer.status_code == 303, words(answer)
    for job in pages.site.jobs.of(
        next(one.where for one in pages.site.catalogue.runs() if one.address == run)
    ):
        assert job.wait(60)
    return str(answer.headers["location"])


def test_one_that_is_ticked_leads_to_the_list_of_the_other_runs(pages: Pages) -> None:
    answer = pages.post("/runs/group~1b/difference", ("checkpoint", "3"), ("elsewhere", "yes"))
    assert answer.headers["location"] == "/runs/group~1b/checkpoints/3/compare"
    assert "/runs/group~1b/checkpoints/3/compare" in links(pages.get("/runs/group~1b/checkpoints/3"))
    listed = pages.followed(answer)
    assert "A is step 25 of group/b." in words(listed)
    assert "1–2 of 2 runs" in words(listed)
    assert [link for link in links(listed) if "run=" in link] == ["?run=a", "?run=c"]
    place = answer.headers["location"]
    assert [link for link in links(pages.get(f"{place}?q=C")) if "run=" in link] == ["?run=c"]
    assert [link for link in links(pages.get(f"{place}?order=step")) if "run=" in link] == [
        "?run=a",
        "?run=c",
    ]
    assert "No run fits" in words(pages.get(f"{place}?state=running"))
    for ticked in ([], [("checkpoint", "2"), ("checkpoint", "3")]):
        refused = pages.post("/runs/group~1b/difference", *ticked, ("elsewhere", "yes"))
        assert refused.status_code == 400
        assert "tick one box" in words(refused)


def test_of_the_other_run_the_checkpoint_that_is_nearest_is_proposed(pages: Pages) -> None:
    place = "/runs/group~1b/checkpoints/2/compare"
    answer = pages.get(f"{place}?run=a")
    assert "1–3 of 3 checkpoints of a" in words(answer)
    assert re.findall(r'name="with" value="(\d)" required( checked)?', answer.text) == [
        ("3", ""), ("2", " checked"), ("1", "")
    ]  # fmt: skip
    assert "1 of 1 checkpoint of a" in words(pages.get(f"{place}?run=a&step=10"))
    assert "There is none yet." in words(pages.get(f"{place}?run=c"))
    assert pages.get(f"{place}?run=nobody").status_code == 404
    assert pages.get("/runs/group~1b/checkpoints/1/compare").status_code == 410
    assert pages.get("/runs/group~1b/checkpoints/9/compare").status_code == 404


def test_a_checkpoint_far_down_the_list_is_proposed_on_its_own_page(root: Path) -> None:
    make_many(root / "long", 60)
    with site_over(root) as site:
        near = Pages(site).get("/runs/a/checkpoints/1/compare?run=long")
        assert "51–60 of 60 checkpoints of long" in words(near)
        assert 'value="1" required checked' in near.text
        assert " checked" not in Pages(site).get("/runs/a/checkpoints/1/compare?run=long&page=1").text


def test_two_runs_are_compared_and_what_only_one_has_is_said(pages: Pages, root: Path) -> None:
    before = files(root)
    place = compared(pages, ("checkpoint", "3"), ("other", "a"), ("with", "2"))
    assert place == PAGE
    answer = pages.get(place)
    said = words(answer)
    assert "A step 25 of group/b" in said
    assert "B step 20 of a" in said
    assert {"/runs/group~1b/checkpoints/3", "/runs/a/checkpoints/2", "/runs/group~1b", "/runs/a"} <= {
        *links(answer)
    }
    assert "Only A has the component extra." in said
    assert "Only B has the component replay_buffer." in said
    assert "Of the components that both have, 1 leaf is only in A." in said
    assert "Of the components that both have, 1 leaf is only in B." in said
    assert "extra only in A" in said
    assert "replay_buffer only in B" in said
    assert "counters different" in said
    assert "policy_weights equal" in said
    assert re.search(r"counters model/global_step 25 20 5 ", said)
    assert re.search(r"counters model/turn 1 absent", said)
    # What narrows the leaves leads to the same comparison.
    assert 'name="other" value="a"' in answer.text
    assert "policy_weights equal" in words(pages.get(f"{place}&component=counters&order=distance"))
    assert files(root) == before


def test_two_that_have_the_same_parts_are_not_said_to_lack_any(pages: Pages) -> None:
    place = compared(pages, ("checkpoint", "1"), ("checkpoint", "3"), run="a")
    assert place == "/runs/a/difference?a=1&b=3"
    said = words(pages.get(place))
    assert "counters different" in said
    assert "Only" not in said
    assert "only in" not in said


def test_the_address_of_a_comparison_offers_it_where_it_was_not_made(root: Path, pages: Pages) -> None:
    fresh = pages.get(PAGE)
    assert re.search(
        r"A step 25 of group/b .*B step 20 of a .*not compared since the server was started", words(fresh)
    )
    fields = re.findall(r'type="hidden" name="(checkpoint|other|with)" value="([^"]*)"', fresh.text)
    assert fields == [("checkpoint", "3"), ("other", "a"), ("with", "2")]
    assert compared(pages, *fields) == PAGE
    assert "Only A has the component extra." in words(pages.get(PAGE))
    assert "Compare them" not in words(pages.get(PAGE))
    # The other way round, or with clocks, it is another comparison.
    for other in ("/runs/a/difference?a=2&b=3&other=group~1b", f"{PAGE}&wall_clock=yes"):
        assert "not compared since the server was started" in words(pages.get(other))
    for a, b, other, status in (
        (3, 2, "nobody", 404),
        (3, 9, "a", 404),
        (1, 2, "a", 410),
        (3, 3, "group~1b", 400),
    ):
        assert pages.get(f"/runs/group~1b/difference?a={a}&b={b}&other={other}").status_code == status
    # What was compared stays to be seen, also where one of the two is deleted.
    save(root, "a", (40, snapshot(step=40)), keep_last=1)
    assert "Only A has the component extra." in words(pages.get(PAGE))
    # The work is listed with the run, and leads there.
    job = pages.site.jobs.of(str(root / "group" / "b"))[0]
    assert PAGE in links(pages.get(f"/jobs/{job.id}"))


def test_a_run_as_its_own_other_is_compared_as_two_of_one(pages: Pages) -> None:
    assert (
        compared(pages, ("checkpoint", "3"), ("other", "a"), ("with", "1"), run="a")
        == "/runs/a/difference?a=1&b=3"
    )
    same = pages.post("/runs/a/difference", ("checkpoint", "3"), ("other", "a"), ("with", "3"))
    assert same.status_code == 400


def test_a_form_that_lacks_one_of_the_two_is_refused_and_begins_nothing(pages: Pages, root: Path) -> None:
    for fields, status in (
        ([("other", "a"), ("with", "2")], 400),
        ([("checkpoint", "3"), ("other", "a")], 400),
        ([("checkpoint", "3"), ("other", "a"), ("with", "x")], 400),
        ([("checkpoint", "3"), ("checkpoint", "2"), ("other", "a"), ("with", "2")], 400),
        ([("checkpoint", "3"), ("other", "nobody"), ("with", "2")], 404),
        ([("checkpoint", "3"), ("other", "a"), ("with", "9")], 404),
        ([("checkpoint", "1"), ("other", "a"), ("with", "2")], 410),
    ):
        assert pages.post("/runs/group~1b/difference", *fields).status_code == status, fields
    assert pages.site.jobs.of(str(root / "group" / "b")) == []
    save(root, "a", (40, snapshot(step=40)), keep_last=1)
    gone = pages.post("/runs/group~1b/difference", ("checkpoint", "3"), ("other", "a"), ("with", "2"))
    assert gone.status_code == 410
    assert "/runs/a" in links(gone)
