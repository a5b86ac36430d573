"""Components that are read as what they mean, and what is said where they cannot be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.adapters.nemo_gym.layered_examples import call, component, counter, segment, snapshot
from tests.cli.command import unbroken
from tests.repo.states import meta
from unbroken.format.manifest import DocumentFormat
from unbroken.repo.repository import Repository
from unbroken.report.comparison import compared, comparison_table, promises_told
from unbroken.report.gym import CALLS, SESSIONS
from unbroken.report.shown import Parts
from unbroken.report.table import Table
from unbroken.report.views import shown, view_of, viewed
from unbroken.state.nodes import Array, Bytes, Coded, Dict, Link, Value
from unbroken.state.snapshot import Component, Snapshot


def text_of(parts: Parts) -> str:
    return "\n".join(part.plain() if isinstance(part, Table) else part for part in parts)


def told(of: Component, *, every: bool = False) -> str:
    found, why_not = shown(of, meta(12), every=every)
    assert found is not None, why_not
    return text_of(found.parts)


def many(count: int) -> Component:
    return component({"counter": [segment(*(counter(f"s{i:05}", rollout=f"{i}-0") for i in range(count)))]})


def write(root: Path, states: dict[int, Snapshot], *, form: DocumentFormat = "json") -> Path:
    repository = Repository.open(root, "run", create=True)
    with repository.writer(document_format=form) as writer:
        for step, state in states.items():
            writer.write(state, meta(step))
    return root / "run"


def test_most_components_are_read_as_they_are_stored() -> None:
    plain = Component("weights", {"w": Array(d="|u1", s=(3,), data=b"abc")})
    assert view_of(plain) is None
    assert shown(plain, None, every=False) == (None, "")
    a, b, notes = viewed(snapshot(plain), snapshot(plain))
    assert (a.components["weights"], b.components["weights"], notes) == (plain, plain, {})


def test_a_person_sees_servers_agents_sessions_and_one_line_a_call() -> None:
    words = told(component())
    lines = words.splitlines()
    assert lines[0].split() == ["environment", "cards+counter"]
    assert any(
        line.split()[:4] == ["counter", "StatefulCounterResourcesServer", "snapshot_with_exclusions", "(1)"]
        for line in lines
    )
    assert any(line.startswith("simple") and "temperature 0.7, top_p 0.9" in line for line in lines)
    (heading,) = [line for line in lines if line.startswith("session s-1:")]
    assert "rollout 7-0" in heading
    assert "reward 1" in heading
    (one,) = [line for line in lines if "increment_counter" in line and '{"count":2}' in line]
    assert '{"success":true}' in one
    assert "no such⏎route" in words


def test_long_values_are_cut() -> None:
    record = counter()
    record.calls = [call("/look", {"text": "y" * 5000}, {"text": "z" * 5000}, revision=1)]
    words = told(component({"counter": [segment(record)]}))
    assert max(len(line) for line in words.splitlines()) < 250
    assert "…" in words


def test_of_many_sessions_a_person_sees_the_first_and_how_many_more_there_are() -> None:
    words = told(many(50))
    assert words.count("session s0") == SESSIONS
    assert words.endswith("30 more sessions (--all)")
    assert told(many(50), every=True).count("session s0") == 50


def test_of_a_long_session_a_person_sees_the_last_calls() -> None:
    record = counter()
    record.calls = [call("/add", {"by": i}, {}, revision=i) for i in range(1, 501)]
    one = component({"counter": [segment(record)]})
    words = told(one)
    assert f"{500 - CALLS} earlier calls (--all)" in words
    assert '{"by":500}' in words
    assert '{"by":1}' not in words
    assert '{"by":1}' in told(one, every=True)


def test_a_component_of_one_rank_and_under_another_place_is_found() -> None:
    assert view_of(component(name="gym@rank0", place="trainer/gym")) is not None


def test_what_cannot_be_read_is_shown_as_it_is_stored_with_a_note() -> None:
    found, why_not = shown(component({"counter": [b"no segment"]}), None, every=False)
    assert found is None
    assert why_not.startswith("gym is shown as it is stored: A segment of records cannot be read")


def test_what_cannot_be_read_is_compared_as_it_is_stored_and_never_called_equal() -> None:
    broken = component({"counter": [b"no segment"]})
    (row,) = compared(snapshot(broken), snapshot(component({"counter": [b"no segment"]})))
    assert row.equal
    assert "as it is stored" in row.note
    assert comparison_table([row]).plain().splitlines()[1].split() == [
        "gym",
        *["equal", "as", "far", "as", "read"],
        str(row.leaves),
    ]
    assert promises_told([row]) == [f"gym was {row.note}"]


def test_one_side_that_cannot_be_read_lets_both_be_compared_as_they_are_stored() -> None:
    a, b, notes = viewed(snapshot(component()), snapshot(component({"counter": [b"no segment"]})))
    assert isinstance(a.components["gym"].roots["gym"], Coded)
    assert isinstance(b.components["gym"].roots["gym"], Coded)
    assert "gym" in notes


def test_other_roots_of_the_component_are_compared_beside_it() -> None:
    def with_a_root(value: Value) -> Component:
        one = component(place="trainer/gym")
        one.roots["trainer/mine"] = value
        return one

    (row,) = compared(snapshot(with_a_root(1)), snapshot(with_a_root(2)))
    assert [leaf.place for leaf in row.differences] == ["trainer/mine"]


def test_links_into_it_are_compared_by_their_place() -> None:
    def pointing(to: str) -> Snapshot:
        link = Component("training_state", {"loop": Dict(v={"gym": Link(to=to, in_="gym")})})
        return snapshot(component(), link)

    rows = compared(pointing("gym"), pointing("gym"))
    assert [row.equal for row in rows] == [True, True]
    assert [row.equal for row in compared(pointing("gym"), pointing("elsewhere"))] == [True, False]


def test_a_component_that_only_one_side_has_is_a_difference() -> None:
    (row,) = compared(snapshot(component()), Snapshot())
    assert not row.equal


def test_the_command_shows_and_compares_it(tmp_path: Path) -> None:
    before = snapshot(component({"counter": [segment(counter())]}))
    after = snapshot(component({"counter": [segment(counter(count=6))]}))
    run = write(tmp_path, {1: before, 2: after})
    assert "session s-1: on counter" in unbroken("show", run, "--component", "gym", cwd=tmp_path).out
    document = unbroken("show", run, "--component", "gym", "--json", cwd=tmp_path).json
    assert document["environment"]["session_states"]["s-1"]["context"] == {"session_id_to_counter": 6}
    assert document["metadata"]["total_steps"] == 2
    answer = unbroken("diff", f"{run}@1", f"{run}@2", "--all", cwd=tmp_path)
    assert answer.code == 1
    assert "gym/environment/session_states/counter~17-0/context/session_id_to_counter" in answer.out
    assert unbroken("diff", f"{run}@1", f"{run}@1", cwd=tmp_path).code == 0


def test_the_command_falls_back_where_it_cannot_be_read(tmp_path: Path) -> None:
    run = write(tmp_path, {1: snapshot(component({"counter": [b"no segment"]}))})
    answer = unbroken("show", run, "--component", "gym", cwd=tmp_path)
    assert answer.code == 0
    assert answer.out.startswith("gym is shown as it is stored")
    assert "unbroken.nemo_gym" in answer.out


def test_json_and_messagepack_checkpoints_give_the_same_view(tmp_path: Path) -> None:
    state = component()
    payload = state.roots["gym"]
    assert isinstance(payload, Coded)
    big = np.frombuffer(
        segment(counter("blob")), np.uint8
    )  # a long segment is a blob, not part of the document
    state.blobs.append(big)
    records = payload.v
    assert isinstance(records, Dict)
    assert records.v is not None
    _segments(records).append(Bytes(b=0))
    seen: list[object] = []
    for form in ("json", "msgpack"):
        run = write(tmp_path / form, {1: snapshot(state)}, form=form)
        (document,) = (run / "steps").glob(f"*/gym.{'json' if form == 'json' else 'msgpack'}")
        assert document.is_file()
        seen.append(unbroken("show", run, "--component", "gym", "--json", cwd=tmp_path).json)
        seen.append(unbroken("show", run, "--component", "gym", cwd=tmp_path).out)
    assert seen[:2] == seen[2:]
    assert "blob" in str(seen[1])


def _segments(payload: Dict) -> list[Value]:
    node: object = payload
    for key in ("<records>", "servers", "counter", "segments"):
        assert isinstance(node, Dict)
        assert node.v is not None
        node = node.v[key]
    found: list[Value] = getattr(node, "v")  # noqa: B009 - whichever sequence it is
    return found


@pytest.mark.parametrize("count", [2000])
def test_many_sessions_stay_readable(count: int) -> None:
    words = told(many(count))
    assert len(words.splitlines()) < 12 * SESSIONS
    assert words.endswith(f"{count - SESSIONS:,} more sessions (--all)")
