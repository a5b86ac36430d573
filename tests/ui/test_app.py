"""The live pages over real runs: what they show, what they begin, and that looking changes nothing."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import unbroken
from tests.browser import runs
from tests.repo.states import meta, snapshot
from tests.ui.serving import Pages, files, links, site_over, words
from unbroken.format.records import FormatRecord
from unbroken.inspection.target import open_run
from unbroken.repo.repository import Repository
from unbroken.repo.seal import seal
from unbroken.ui.app.looking import signature

MANY = 120
SESSIONS = 130


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of every kind that a page has to cope with; one was killed twice, and is finished. Read only."""
    folder = tmp_path_factory.mktemp("root")
    runs.make_killed(folder, "killed")
    runs.make_many(folder / "many", MANY)
    runs.make_sessions(folder / "sessions", SESSIONS)
    runs.make_markup(folder / "markup")
    runs.make_bare(folder / "group" / "bare")
    runs.make_damaged(folder / "damaged")
    return folder


@pytest.fixture(scope="module")
def pages(root: Path) -> Iterator[Pages]:
    with site_over(root) as site:
        yield Pages(site)


@pytest.fixture
def own(root: Path, tmp_path: Path) -> Path:
    """A copy of the killed run, to be changed."""
    shutil.copytree(root / "killed", tmp_path / "killed")
    return tmp_path / "killed"


def sequences(root: Path, job: str = "killed") -> list[int]:
    return [commit.sequence for commit in Repository.open(root, job).commits()]


def test_the_list_tells_how_each_run_stands(pages: Pages) -> None:
    pages.site.looking.glances(pages.site.catalogue.runs(), seconds=60)
    answer = pages.get("/")
    assert answer.status_code == 200
    said = words(answer)
    assert "1–6 of 6 runs" in said
    for name in ("killed", "many", "sessions", "markup", "group/bare", "damaged"):
        assert name in said
    assert "killed finished 200" in said
    assert "/runs/group~1bare" in links(answer)
    assert "group/bare empty –" in said


def test_the_list_can_be_narrowed_and_ordered(pages: Pages) -> None:
    assert "1 of 1 run " in words(pages.get("/?q=kill"))
    assert "1 of 1 run " in words(pages.get("/?state=finished"))
    assert "No run fits" in words(pages.get("/?q=nothing%20like%20it"))
    ordered = words(pages.get("/?order=step"))
    assert ordered.index("many") < ordered.index("killed") < ordered.index("damaged")


def test_a_run_shows_its_kills_its_curves_and_its_checkpoints(pages: Pages, root: Path) -> None:
    answer = pages.get("/runs/killed")
    said = words(answer)
    assert answer.status_code == 200
    assert "Its training ended at step 200." in said
    assert "interruptions 2" in said
    for name in ("reward", "loss", "cost", "sizes"):
        assert f'data-chart="{name}"' in answer.text
    for sequence in sequences(root):
        assert f"/runs/killed/checkpoints/{sequence}" in links(answer)
    assert "every 20 steps" in said


def test_checkpoints_are_paged_and_found_by_their_step(pages: Pages) -> None:
    first = pages.get("/runs/many")
    assert f"1–50 of {MANY} checkpoints" in words(first)
    assert "?page=3" in links(first)
    assert f"101–120 of {MANY} checkpoints" in words(pages.get("/runs/many?page=3"))
    assert f"101–120 of {MANY} checkpoints" in words(pages.get("/runs/many?page=99"))
    assert f"1–50 of {MANY} checkpoints" in words(pages.get("/runs/many?page=-1"))
    found = pages.get("/runs/many?step=60,000")
    assert "1–50 of 60 checkpoints" in words(found)
    assert "?step=60%2C000&page=2" in links(found)
    assert "No checkpoint is at or before this step" in words(pages.get("/runs/many?step=1"))


def test_a_curve_comes_with_one_metric_and_every_other_is_asked_for_by_its_name(tmp_path: Path) -> None:
    names = [f"metric {number:02d}" for number in range(40)]
    with Repository.open(tmp_path, "wide", create=True).writer() as writer:
        for step in (1, 2, 3):
            metrics = {name: float(100 * number + step) for number, name in enumerate(names)}
            writer.write(snapshot(step=step), meta(step, metrics={"reward": step / 8, **metrics}))
    with site_over(tmp_path) as site:
        pages = Pages(site)

        def lines(path: str) -> list[list[float]]:
            text = pages.get(path).text.partition('data-chart="reward"')[2]
            data = json.loads(text.partition('application/json">')[2].partition("</script>")[0])
            assert [choice["name"] for choice in data["choices"]] == ["reward", *names]
            return [trace["y"] for trace in data["figure"]["data"] if trace["y"]]

        assert lines("/runs/wide") == [[1 / 8, 2 / 8, 3 / 8]]
        assert lines("/runs/wide?reward=metric+07") == [[701.0, 702.0, 703.0]]
        assert lines("/runs/wide?reward=nothing+like+it") == [[1 / 8, 2 / 8, 3 / 8]]
        table = next(
            link for link in links(pages.get("/runs/wide?reward=metric+07")) if "/data/reward" in link
        )
        assert re.search(r"counts metric 07 .* yes 703 ", words(pages.get(table)))


def test_what_a_chart_shows_is_there_as_a_table(pages: Pages) -> None:
    said = words(pages.get("/runs/many/data/reward"))
    assert f"1–100 of {MANY} rows" in said
    assert "120,000" in said
    assert pages.get("/runs/many/data/nothing").status_code == 404


def test_a_checkpoint_shows_its_parts_their_cost_and_its_neighbours(pages: Pages, root: Path) -> None:
    newest, before, *_ = sequences(root)
    answer = pages.get(f"/runs/killed/checkpoints/{before}")
    said = words(answer)
    assert "Step 180" in said
    assert "Before: step 160" in said
    assert "After: step 200" in said
    assert "training_state exact" in said
    assert 'data-chart="makeup"' in answer.text
    assert "After:" not in words(pages.get(f"/runs/killed/checkpoints/{newest}"))
    assert "training_state" in words(pages.get(f"/runs/killed/checkpoints/{before}/makeup"))


def test_the_leaves_of_a_component_are_shown_without_reading_its_arrays(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "killed", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "packs")
    with site_over(tmp_path) as site:
        pages = Pages(site)
        place = f"/runs/killed/checkpoints/{sequences(tmp_path)[0]}/component"
        said = words(pages.get(f"{place}?name=training_state"))
        assert "weights array <f8 [64]" in said
        assert "replay_buffer" not in words(pages.get(f"{place}?name=training_state&q=weights"))
        assert pages.get(f"{place}?name=nothing").status_code == 404


def test_two_checkpoints_are_compared_leaf_by_leaf(pages: Pages, root: Path) -> None:
    newer, older = sequences(root)[:2]
    fields = ("checkpoint", str(newer)), ("checkpoint", str(older))
    answer = pages.post("/runs/killed/difference", *fields)
    assert answer.headers["location"] == f"/runs/killed/difference?a={older}&b={newer}"
    job = pages.site.jobs.latest("difference", str(root / "killed"))
    assert job is not None
    assert job.wait(60)
    said = words(pages.followed(answer))
    assert "A step 180" in said
    assert "B step 200" in said
    assert "training_state different" in said
    assert "weights" in said
    only = words(
        pages.get(f"/runs/killed/difference?a={older}&b={newer}&component=rng_states&order=distance")
    )
    assert "training_state weights" not in only


def test_a_comparison_wants_two(pages: Pages, root: Path) -> None:
    newest = str(sequences(root)[0])
    for fields, told in (
        ([], "none were chosen"),
        ([("checkpoint", newest)], "1 was chosen"),
        ([("checkpoint", newest), ("checkpoint", newest)], "1 was chosen"),
        ([("checkpoint", "x")], "none were chosen"),
        ([("checkpoint", "1"), ("checkpoint", "2"), ("checkpoint", "3")], "3 were chosen"),
    ):
        answer = pages.post("/runs/killed/difference", *fields)
        assert answer.status_code == 400
        assert told in words(answer)
        assert "tick two boxes" in words(answer)
    assert pages.get("/runs/killed/difference?a=x").status_code == 400


def test_the_address_of_a_comparison_names_both_and_answers_as_the_form_does(
    pages: Pages, root: Path
) -> None:
    newer, older, *_ = known = sequences(root)
    said = words(pages.get(f"/runs/killed/difference?a={older}&b={newer}&wall_clock=yes"))
    assert re.search(r"A step 180 .*B step 200 .*not compared since the server was started", said)
    gone = next(number for number in range(1, newer) if number not in known)
    for a, b, status in (
        (gone, newer, 410),
        (newer, gone, 410),
        (0, newer, 404),
        (older, newer + 90, 404),
        (newer, newer, 400),
    ):
        answer = pages.get(f"/runs/killed/difference?a={a}&b={b}")
        assert answer.status_code == status, (a, b)
        assert "Compare them" not in words(answer)
        form = pages.post("/runs/killed/difference", ("checkpoint", str(a)), ("checkpoint", str(b)))
        assert form.status_code == status, (a, b)


def test_sessions_are_paged_found_and_shown_with_their_calls(pages: Pages) -> None:
    place = "/runs/sessions/checkpoints/2"
    assert f"{place}/sessions" in links(pages.get(place))
    assert f"1–50 of {SESSIONS} sessions" in words(pages.get(f"{place}/sessions"))
    assert f"101–130 of {SESSIONS} sessions" in words(pages.get(f"{place}/sessions?page=3"))
    found = pages.get(f"{place}/sessions?q=s-00012")
    assert "1 of 1 session" in words(found)
    (link,) = [link for link in links(found) if "/session?" in link]
    said = words(pages.get(link))
    assert "1–4 of 4 calls" in said
    for call in ("seed_session 200", "increment_counter 200", "look 404", "verify 200"):
        assert call in said
    assert "partial_credit 0.5" in said
    assert "No session fits" in words(pages.get(f"{place}/sessions?status=refused"))
    assert pages.get(f"{place}/session?server=counter&key=nobody").status_code == 404
    assert pages.get("/runs/many/checkpoints/1/sessions").status_code == 404


def test_verify_finds_what_is_whole_and_what_is_damaged(pages: Pages) -> None:
    whole = pages.done(pages.post("/runs/killed/verify"))
    assert "Every object is as it was written." in words(whole)
    damaged = words(pages.done(pages.post("/runs/damaged/verify")))
    assert "Something is damaged." in damaged
    assert "meta.json" in damaged
    assert "manifest.json" in damaged
    only = words(pages.done(pages.post("/runs/damaged/verify", ("checkpoint", "1"))))
    assert "1 of 1 checkpoint " in only
    assert "Every object is as it was written." in only


def test_damage_is_told_where_it_is_and_hides_nothing_else(pages: Pages) -> None:
    said = words(pages.get("/runs/damaged"))
    assert said.count("damaged: steps/") == 2
    assert "1–3 of 3 checkpoints" in said
    newest = pages.get("/runs/damaged/checkpoints/3")
    assert newest.status_code == 200
    assert "manifest.json is missing" in words(newest)


def test_what_each_takes_is_measured_when_asked_for(pages: Pages) -> None:
    pages.post("/runs/killed/measure")
    job = pages.site.jobs.latest("measure", str(Path(pages.site.root) / "killed"))
    assert job is not None
    assert job.wait(60)
    told = pages.get(f"/jobs/{job.id}")
    assert re.search(r"on disk \S+ .iB .* of it dead checkpoints 7 ", words(told))
    assert "/runs/killed#checkpoints" in links(told)
    said = words(pages.get("/runs/killed"))
    assert "alone shared" in said
    assert "of it dead" in said


def test_texts_of_a_run_are_shown_and_never_carried_out(pages: Pages) -> None:
    for place in ("/", "/runs/markup", "/runs/markup/checkpoints/1", "/runs/markup/data/reward"):
        answer = pages.get(place)
        assert answer.status_code == 200
        assert runs.MARKUP not in answer.text
        assert "<img src=x" not in answer.text
        assert "</script><script>document" not in answer.text
    assert runs.MARKUP in words(pages.get("/runs/markup/checkpoints/1"))


def test_an_empty_run_and_an_empty_root_have_pages(pages: Pages, tmp_path: Path) -> None:
    said = words(pages.get("/runs/group~1bare"))
    assert "There is none yet." in said
    assert "Nothing was saved yet." in said
    with site_over(tmp_path) as site:
        assert "There is no run here yet" in words(Pages(site).get("/"))


def test_a_page_that_has_not_changed_is_not_sent_again(own: Path) -> None:
    with site_over(own.parent) as site:
        pages = Pages(site)
        tag = pages.get("/runs/killed").headers["etag"]
        assert pages.get("/runs/killed", if_none_match=tag).status_code == 304
        with open_run(str(own)).writer() as writer:
            writer.write(snapshot(step=300), meta(300))
        changed = pages.get("/runs/killed", if_none_match=tag)
        assert changed.status_code == 200
        assert "step 300" in words(changed)


def test_a_checkpoint_that_its_run_deletes_meanwhile_is_no_error(own: Path) -> None:
    with site_over(own.parent) as site:
        pages = Pages(site)
        oldest = sequences(own.parent)[-1]
        assert pages.get(f"/runs/killed/checkpoints/{oldest}").status_code == 200
        _prune(own, keep_last=2)
        for page in ("", "/component?name=training_state", "/makeup", "/sessions"):
            answer = pages.get(f"/runs/killed/checkpoints/{oldest}{page}")
            assert answer.status_code == 410
            assert "is not there any more" in words(answer)
        said = words(pages.get("/runs/killed"))
        assert "checkpoints 2 of 11 saves on record" in said


def test_a_run_that_is_deleted_and_begun_anew_is_not_taken_for_the_old_one(own: Path) -> None:
    with site_over(own.parent) as site:
        pages = Pages(site)
        assert "step 200" in words(pages.get("/runs/killed"))
        shutil.rmtree(own)
        assert pages.get("/runs/killed").status_code == 404
        with Repository.open(own.parent, "killed", create=True).writer() as writer:
            for step in (1, 2):
                writer.write(snapshot(step=step), meta(step))
        said = words(pages.get("/runs/killed"))
        assert "step 2 " in said
        assert "step 200" not in said
        assert "Step 1" in words(pages.get("/runs/killed/checkpoints/1"))


def test_looking_changes_nothing(own: Path, root: Path) -> None:
    shutil.copytree(root / "damaged", own.parent / "damaged")
    before = files(own.parent)
    with site_over(own.parent) as site:
        pages = Pages(site)
        newer, older = sequences(own.parent)[:2]
        for place in (
            "/",
            "/runs/killed",
            "/runs/damaged",
            f"/runs/killed/checkpoints/{newer}",
            "/runs/killed/data/cost",
        ):
            pages.get(place)
        for place, *fields in (
            ("/runs/killed/verify",),
            ("/runs/damaged/verify",),
            ("/runs/killed/measure",),
            ("/runs/killed/prune/plan", ("keep_last", "1")),
            ("/runs/killed/difference", ("checkpoint", str(newer)), ("checkpoint", str(older))),
        ):
            pages.post(place, *fields)
        for job in site.jobs.of(str(own)):
            assert job.wait(60)
        refused = pages.post("/runs/killed/prune", ("keep_last", "1"), ("confirmed", "yes"), ("plan", "x"))
        assert refused.status_code == 400
        assert "--allow-write" in words(refused)
    assert files(own.parent) == before


def test_what_pages_read_through_cannot_write(root: Path) -> None:
    with site_over(root) as site:
        run = site.catalogue.run("killed")
        assert run is not None
        store = site.catalogue.open(run).store
        for write in (
            lambda: store.put("a", b""),
            lambda: store.put_if_absent("a", b""),
            lambda: store.delete("format.json"),
        ):
            with pytest.raises(Exception, match="by what only looks"):
                write()


def test_a_prune_shows_its_plan_and_names_the_command(pages: Pages) -> None:
    said = words(pages.done(pages.post("/runs/killed/prune/plan", ("keep_last", "2"))))
    assert "goes" in said
    assert "Nothing was deleted." in said
    assert "unbroken prune --keep-last 2" in said
    wrong = pages.post("/runs/killed/prune/plan", ("keep_last", "zero"))
    assert wrong.status_code == 400
    assert "no number of checkpoints" in words(wrong)


def test_a_prune_deletes_what_was_shown_and_confirmed(own: Path) -> None:
    before = sequences(own.parent)
    with site_over(own.parent, allow_write=True) as site:
        pages = Pages(site)
        shown = pages.done(pages.post("/runs/killed/prune/plan", ("keep_last", "2")))
        assert "Delete what this plan deletes (5 checkpoints" in words(shown)
        name = shown.text.split('name="plan" value="')[1].partition('"')[0]
        fields = ("keep_last", "2"), ("plan", name)
        assert "was not ticked" in words(pages.post("/runs/killed/prune", *fields))
        assert sequences(own.parent) == before
        done = pages.done(pages.post("/runs/killed/prune", *fields, ("confirmed", "yes")))
        assert "5 checkpoints deleted." in words(done)
    assert sequences(own.parent) == before[:2]
    assert (
        Repository.open(own.parent, "killed").verify(Repository.open(own.parent, "killed").commits()[1]) == []
    )


def test_a_prune_whose_plan_is_another_by_now_deletes_nothing(own: Path) -> None:
    with site_over(own.parent, allow_write=True) as site:
        pages = Pages(site)
        shown = pages.done(pages.post("/runs/killed/prune/plan", ("keep_last", "2")))
        name = shown.text.split('name="plan" value="')[1].partition('"')[0]
        with open_run(str(own)).writer() as writer:
            writer.write(snapshot(step=300), meta(300))
        before = sequences(own.parent)
        fields = ("keep_last", "2"), ("plan", name), ("confirmed", "yes")
        said = words(pages.done(pages.post("/runs/killed/prune", *fields)))
        assert "has changed since the plan was shown. Nothing was deleted." in said
        other = words(pages.done(pages.post("/runs/killed/prune", ("keep_last", "1"), *fields[1:])))
        assert "Nothing was deleted." in other
    assert sequences(own.parent) == before


def test_a_prune_keeps_off_a_run_in_training(own: Path) -> None:
    with site_over(own.parent, allow_write=True) as site, open_run(str(own)).writer():
        pages = Pages(site)
        shown = pages.done(pages.post("/runs/killed/prune/plan", ("keep_last", "2")))
        said = words(shown)
        assert "a prune refuses until it has ended" in said
        assert 'name="plan"' not in shown.text


def test_a_run_that_grows_has_another_signature_and_one_that_does_not_has_none(own: Path) -> None:
    before = signature(open_run(str(own)))
    assert signature(open_run(str(own))) == before
    with open_run(str(own)).writer() as writer:
        writer.write(snapshot(step=300), meta(300))
    assert signature(open_run(str(own))) != before


@pytest.mark.parametrize(
    "path",
    [
        "/runs/..%2f..%2fetc",
        "/runs/%2e%2e",
        "/runs/killed%2f..%2fmany",
        "/runs/~1etc",
        "/static/..%2fapp%2fsite.py",
        "/static/%2e%2e%2fapp",
        "/static/chart.html",
        "/runs/killed%00",
        "/runs/killed/checkpoints/1e9",
        "/runs/killed/checkpoints/99",
        "/runs/killed/checkpoints/0",
        "/runs/killed/checkpoints/-1",
        "/runs/nothing",
        "/jobs/nothing",
        "/nothing",
    ],
)
def test_an_address_that_names_nothing_leads_nowhere(pages: Pages, path: str) -> None:
    answer = pages.get(path)
    assert answer.status_code == 404
    assert "There is no such page." in words(answer)


def test_no_link_leads_out_of_the_root(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "killed", tmp_path / "secret" / "killed")
    inside = tmp_path / "root"
    inside.mkdir()
    (inside / "killed").symlink_to(tmp_path / "secret" / "killed")
    (inside / "group").symlink_to(tmp_path / "secret")
    with site_over(inside) as site:
        pages = Pages(site)
        assert "There is no run here yet" in words(pages.get("/"))
        assert pages.get("/runs/killed").status_code == 404
        assert pages.get("/runs/group~1killed").status_code == 404


def test_a_run_that_becomes_a_link_is_not_followed(own: Path, tmp_path: Path) -> None:
    with site_over(own.parent) as site:
        pages = Pages(site)
        assert pages.get("/runs/killed").status_code == 200
        own.rename(tmp_path / ".elsewhere")
        own.symlink_to(tmp_path / ".elsewhere")
        assert pages.get("/runs/killed").status_code == 404


def test_names_that_are_no_text_have_pages_and_hide_no_other(root: Path, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/root-\xfe"))
    odd = Path(os.fsdecode(os.fsencode(folder) + b"/run-\xff"))
    folder.mkdir()
    shutil.copytree(root / "killed", odd)
    shutil.copytree(root / "markup", folder / "markup")
    with site_over(folder) as site:
        pages = Pages(site)
        site.looking.glances(site.catalogue.runs(), seconds=60)
        listed = pages.get("/")
        assert listed.status_code == 200
        assert "root-\\udcfe" in words(listed)
        assert {"/runs/markup", "/runs/run-~2dcff"} <= set(links(listed))
        # No training can have such a name: what cannot be opened is told, like any other that cannot.
        page = pages.get("/runs/run-~2dcff")
        assert page.status_code == 400
        assert "run-\\udcff" in words(page)
        for path in ("/runs/markup", "/runs/markup/checkpoints/3", "/runs/markup/data/reward"):
            assert pages.get(path).status_code == 200
        done = pages.done(pages.post("/runs/markup/verify"))
        assert "Every object is as it was written." in words(done)
        assert "root-\\udcfe" in words(pages.done(pages.post("/runs/markup/prune/plan", ("keep_last", "1"))))


def test_texts_of_a_run_that_are_no_text_are_shown_as_python_writes_them(tmp_path: Path) -> None:
    with unbroken.Run(tmp_path, job="odd", every=unbroken.Every(steps=1)) as run:
        run.track(held={"\udcff<b>": np.zeros(2), "other": "\ud800"})
        for _ in run.steps(1):
            odd: dict[str, Any] = {"\udcff": 1.0}
            run.record(**odd)
    with site_over(tmp_path) as site:
        pages = Pages(site)
        newest = max(commit.sequence for commit in Repository.open(tmp_path, "odd").commits())
        component = f"/runs/odd/checkpoints/{newest}/component?name=training_state"
        for path in ("/", "/runs/odd", f"/runs/odd/checkpoints/{newest}", component, "/runs/odd/data/reward"):
            assert pages.get(path).status_code == 200, path
        assert "\\udcff<b>" in words(pages.get(component))


def test_how_an_environment_was_captured_is_said_in_words(tmp_path: Path) -> None:
    with unbroken.Run(tmp_path, job="cart", every=unbroken.Every(steps=1)) as run:
        env = gymnasium.make("CartPole-v1")
        env.reset(seed=1)
        run.track(env=env)
        for _ in run.steps(1):
            pass
    with site_over(tmp_path) as site:
        said = words(Pages(site).get("/runs/cart/checkpoints/1"))
        assert re.search(r"CartPole\S* 1 .{0,40}its attributes", said), said[600:1600]
        assert "STRUCTURAL" not in said


def test_a_root_that_is_gone_is_told_and_comes_back(own: Path) -> None:
    with site_over(own.parent) as site:
        pages = Pages(site)
        site.catalogue.clock = itertools.count(0, 100).__next__
        assert pages.get("/").status_code == 200
        elsewhere = own.parent.with_name("elsewhere")
        own.parent.rename(elsewhere)
        for path in ("/", "/runs/killed"):
            gone = pages.get(path)
            assert gone.status_code == 503
            assert f"{own.parent} is gone." in words(gone)
        elsewhere.rename(own.parent)
        assert pages.get("/runs/killed").status_code == 200
        assert pages.get("/").status_code == 200


def test_steps_lost_that_nobody_knows_are_not_none(pages: Pages, root: Path, tmp_path: Path) -> None:
    assert "steps lost at least 20 of 2 interruptions not all is known" in words(pages.get("/runs/killed"))
    shutil.copytree(root / "killed", tmp_path / "killed")
    history = tmp_path / "killed" / "history.jsonl"
    assert history.exists()
    kept = [line for line in history.read_text().splitlines(keepends=True) if '"steps_lost":20' not in line]
    history.write_text("".join(kept))
    with site_over(tmp_path) as site:
        assert "steps lost not known at most those between two saves" in words(
            Pages(site).get("/runs/killed")
        )


def test_a_root_may_be_one_run(root: Path) -> None:
    with site_over(root / "killed") as site:
        pages = Pages(site)
        assert "/runs/killed" in links(pages.get("/"))
        assert "Its training ended" in words(pages.get("/runs/killed"))


def test_a_run_of_a_newer_version_is_told_and_hides_no_other(own: Path, root: Path) -> None:
    shutil.copytree(root / "markup", own.parent / "markup")
    record = FormatRecord(mandatory=["a feature of tomorrow"])
    (own / "format.json").write_bytes(seal(record))
    with site_over(own.parent) as site:
        pages = Pages(site)
        site.looking.glances(site.catalogue.runs(), seconds=60)
        said = words(pages.get("/"))
        assert "needs 'a feature of tomorrow'" in said
        assert "1–2 of 2 runs" in said
        assert "Upgrade unbroken." in words(pages.get("/runs/killed"))


def _prune(run: Path, *, keep_last: int) -> None:
    from unbroken.repo.pruning import retention_now

    repository = open_run(str(run))
    with repository.writer() as writer:
        writer.prune(retention_now(repository.store, repository.commits(), keep_last))
