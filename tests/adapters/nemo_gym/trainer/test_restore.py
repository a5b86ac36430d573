"""A `Gym` that is tracked: undisturbed, killed and resumed, and left out; over servers that live, restart or are new."""

from __future__ import annotations

import base64
import random
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

import unbroken
from unbroken.adapters.nemo_gym import control
from unbroken.adapters.nemo_gym.media import Media
from unbroken.adapters.nemo_gym.records import Answer, Call, RolloutRecord, SessionRecord
from unbroken.adapters.nemo_gym.trainer.payload import ServerPart, read_payload
from unbroken.errors import ConfigError, SaveFailed, ServerMissing, StateMismatch
from unbroken.nemo_gym import Gym
from unbroken.repo.repository import Repository
from unbroken.types import Fidelity

from .stand_in import TOKEN, Agent, Resources, Stack
from .training import Training, finish, kill_at, kill_in

STEPS = 5


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    stack = Stack()
    found, said = finish(tmp_path_factory.mktemp("undisturbed") / "run", stack, STEPS)
    stack.stop()
    assert "exact: all" in said
    return found


def test_killed_in_a_collection_it_ends_as_if_it_had_never_stopped(
    undisturbed: dict[str, Any], stack: Stack, tmp_path: Path
) -> None:
    kill_at(9, tmp_path / "run", stack, STEPS)
    kill_at(20, tmp_path / "run", stack, STEPS)
    found, said = finish(tmp_path / "run", stack, STEPS)
    assert "goes on at step" in said
    assert found == undisturbed
    # Agents have given from their logs what they had been told: nothing was generated twice.
    assert stack.model.calls == dict.fromkeys([f"{r}-{i}" for r in range(STEPS) for i in range(3)], 2)


def test_left_out_of_the_checkpoint_everything_in_flight_is_generated_again(
    stack: Stack, tmp_path: Path
) -> None:
    kill_at(20, tmp_path / "run", stack, STEPS, "untracked")
    _, said = finish(tmp_path / "run", stack, STEPS, "untracked")
    # Its ids begin where those of the killed process began: what that one left would be taken for its own.
    assert "rollouts that another one had left on the servers are dropped" in said
    assert sum(stack.model.calls.values()) > STEPS * 3 * 2


def test_rollouts_that_were_submitted_are_neither_lost_nor_taken_twice(stack: Stack, tmp_path: Path) -> None:
    kill_at(2, tmp_path / "run", stack, 8, "take")
    kill_in("export", 4, tmp_path / "run", stack, 8, "take")
    kill_in("committed", 4, tmp_path / "run", stack, 8, "take")
    found, _ = finish(tmp_path / "run", stack, 8, "take")
    assert sorted(prompt for prompt, _ in found["trained"]) == list(range(8))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "run"


def rows(count: int = 3) -> list[dict[str, Any]]:
    return [{"prompt": i, "weight": 0.5} for i in range(count)]


def saved(root: Path, stack: Stack, **options: Any) -> None:
    """Leave a checkpoint of step 1 with three rollouts that nobody has taken."""
    training = Training(root, stack)
    training.begin()
    training.gym.submit(rows())
    with training.gym.coordinator.changed:
        training.gym.coordinator.changed.wait_for(
            lambda: len(training.gym.coordinator.ledger.finished("submit")) == 3, 300
        )
    training.step()
    training.leave()


def test_servers_that_go_on_keep_what_they_have(root: Path, stack: Stack) -> None:
    saved(root, stack)
    again = Training(root, stack)
    assert again.begin() == 1
    assert "prepare" not in stack.resources.asked
    assert [server.phase for server in stack.servers] == ["open"] * 3
    calls = stack.model.calls.total()
    assert sorted(r.id for r in again.gym.take(3)) == ["0-0", "0-1", "0-2"]
    assert stack.model.calls.total() == calls  # G5: nothing is generated to come back
    again.leave()


def test_one_server_that_lost_its_log_takes_all_back_to_the_checkpoint(root: Path, stack: Stack) -> None:
    """An agent that kept later calls than its resources server would never make them again."""
    saved(root, stack)
    stack.agent.keep("later", RolloutRecord(id="later"))
    stack.resources.stop()
    stack.resources = Resources("res")
    again = Training(root, stack)
    again.begin()
    assert sorted(stack.resources.kept) == sorted(stack.agent.kept) == ["0-0", "0-1", "0-2"]
    assert "activate" not in stack.model.asked
    again.leave()


def test_servers_on_another_node_get_the_records_of_the_checkpoint(
    root: Path, stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(root, stack)
    other = Stack()
    again = Training(root, other)
    assert again.begin() == 1
    assert {k: other.resources.digest(r) for k, r in other.resources.kept.items()} == {
        k: stack.resources.digest(r) for k, r in stack.resources.kept.items()
    }
    assert sorted(other.agent.kept) == ["0-0", "0-1", "0-2"]
    assert "servers came back: agent from its part of the checkpoint" in capsys.readouterr().err
    assert [server.phase for server in other.servers] == ["open"] * 3
    again.step()
    again.leave()
    other.stop()


def test_a_session_that_cannot_be_read_is_named_and_the_others_come_back(root: Path, stack: Stack) -> None:
    saved(root, stack)
    other = Stack()
    other.resources.spoilt.add("0-1")
    again = Training(root, other)
    again.begin()
    assert again.run.report is not None
    assert any(
        "0-1 of res" in change and "its seal does not fit" in change for change in again.run.report.changes
    )
    assert sorted(other.resources.kept) == ["0-0", "0-2"]
    again.leave()
    other.stop()


def test_another_class_is_refused_and_nothing_touched(root: Path, stack: Stack) -> None:
    saved(root, stack)
    other = Stack()
    other.resources.class_name = "AnotherResourcesServer"
    again = Training(root, other)
    with pytest.raises(StateMismatch, match="res was saved as CounterResourcesServer"):
        again.begin()
    assert {"adopt", "prepare", "activate", "release"} & set(other.resources.asked) == set()
    again.gym.close()
    other.stop()


def test_a_server_that_is_gone_is_refused(root: Path, stack: Stack) -> None:
    saved(root, stack)
    gym = Gym({n: u for n, u in stack.urls.items() if n != "policy"}, token=TOKEN)
    run = unbroken.Run(root, every=1, quiet=True, allow_changed={"gym"})
    run.track(gym=gym)
    with pytest.raises(StateMismatch, match="the server policy was saved"):
        next(iter(run.steps(5)))
    gym.close()


def test_another_configuration_is_refused_unless_it_is_allowed(root: Path, stack: Stack) -> None:
    """H6: a changed configuration would go on under other rules."""
    saved(root, stack)
    stack.resources.config_hash = "another"
    again = Training(root, stack)
    with pytest.raises(StateMismatch, match="res: new, or configured otherwise"):
        again.begin()
    again.gym.close()
    allowed = Training(root, stack)
    allowed.run = unbroken.Run(root, every=1, quiet=True, allow_changed={"gym"})
    allowed.run.track(gym=allowed.gym)
    assert allowed.begin() == 1
    assert len(allowed.gym.take(3)) == 3
    allowed.leave()


def test_an_evaluation_under_a_time_limit_does_only_what_is_left(root: Path, stack: Stack) -> None:
    """H6: 20 rows, several starts; no row is generated twice."""
    trained: list[str] = []
    for _ in range(4):
        training = Training(root, stack)
        if training.begin() == 0 and not trained:
            training.gym.submit(rows(20))
        trained += [r.id for r in training.gym.take(5)]
        training.step()
        training.leave()
    assert sorted(trained) == sorted(f"0-{i}" for i in range(20))
    assert stack.model.calls == dict.fromkeys(trained, 2)


def test_a_server_that_does_not_answer_fails_the_save_and_nothing_else(root: Path, stack: Stack) -> None:
    training = Training(root, stack, sync_timeout=4.0)
    training.begin()
    training.gym.collect(rows())
    training.step()
    stack.model.hearing.clear()
    with pytest.raises((ServerMissing, SaveFailed), match="policy"):
        training.step()
    assert stack.agent.phase == "open"
    assert stack.resources.phase == "open"
    stack.model.hearing.set()
    repository = Repository.open(root, root.name)
    assert repository.commits()[0].step == 1
    repository.load(repository.commits()[0])
    training.step()
    assert Repository.open(root, root.name).commits()[0].step == 2
    training.leave()


def test_another_token_stops_the_start(root: Path, stack: Stack) -> None:
    gym = Gym(stack.urls, token="another")
    run = unbroken.Run(root, every=1, quiet=True)
    run.track(gym=gym)
    with pytest.raises(ConfigError, match="control token"):
        next(iter(run.steps(5)))
    gym.close()


def test_what_is_trained_on_and_durable_is_dropped_by_the_servers(root: Path, stack: Stack) -> None:
    training = Training(root, stack)
    training.begin()
    training.gym.collect(rows())
    assert len(stack.agent.kept) == len(stack.resources.kept) == 3
    training.step()
    assert stack.agent.kept == stack.resources.kept == {}
    assert stack.resources.committed_marks
    training.leave()


def test_servers_that_were_not_told_before_a_kill_keep_nothing_for_ever(
    root: Path, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(root, stack)
    training.begin()
    training.gym.collect(rows())
    monkeypatch.setattr(training.gym, "checkpoint_committed", lambda: None)  # killed before that
    training.step()
    training.leave()
    again = Training(root, stack)
    assert again.begin() == 1
    assert len(stack.agent.kept) == len(stack.resources.kept) == 3
    again.step()
    assert stack.agent.kept == stack.resources.kept == {}
    again.leave()


def test_servers_that_could_not_be_told_hear_of_it_at_the_next_save(root: Path, stack: Stack) -> None:
    training = Training(root, stack, sync_timeout=4.0)
    training.begin()
    training.wait()
    training.gym.collect(rows())
    stack.agent.hearing.clear()
    training.gym.checkpoint_committed()
    training.wait()
    stack.agent.hearing.set()
    with pytest.warns(UserWarning, match="Not all servers heard of the last checkpoint"):
        training.step()
    assert stack.agent.kept == {}
    training.leave()


def test_a_run_that_begins_anew_finds_nothing_of_another(
    root: Path, stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(root, stack)
    other = Training(tmp_path / "other", stack)
    other.begin()
    assert "3 rollouts that another one had left" in capsys.readouterr().err
    assert stack.agent.kept == stack.resources.kept == {}
    other.leave()


def test_a_server_that_lost_its_log_is_no_other_trainer(root: Path, stack: Stack) -> None:
    training = Training(root, stack)
    training.begin()
    training.wait()
    port = stack.resources.port
    stack.resources.stop()
    stack.resources = Resources("res", port=port)
    with pytest.raises(ServerMissing, match="res came back without its log"):
        training.step()
    training.gym.close()


def test_going_back_to_an_older_checkpoint_takes_the_servers_along(root: Path, stack: Stack) -> None:
    """What the older one waits for was dropped since: its records are put back, and nothing is generated anew."""
    saved(root, stack)
    training = Training(root, stack)
    training.begin()
    training.gym.take(3)
    training.step()
    training.leave()
    assert stack.agent.kept == {}
    repository = Repository.open(root, root.name)
    newest = repository.commits()[0]
    assert newest.step == 2
    again = Training(root, stack)
    again.run = unbroken.Run(root, every=1, quiet=True, resume=1)
    again.run.track(gym=again.gym)
    assert again.begin() == 1
    calls = stack.model.calls.total()
    assert sorted(r.id for r in again.gym.take(3)) == ["0-0", "0-1", "0-2"]
    assert stack.model.calls.total() == calls
    again.leave()


@pytest.mark.parametrize("what", ["capability", "exclusions"])
def test_what_does_not_come_back_makes_the_component_approximate(root: Path, stack: Stack, what: str) -> None:
    if what == "capability":
        stack.resources.capability = "drain_only"
    else:
        stack.resources.exclusions = ("_client: a connection",)
    training = Training(root, stack)
    training.begin()
    assert training.run.report is not None
    promise = training.run.report.promises["gym"]
    assert promise.fidelity is Fidelity.APPROXIMATE
    assert "res" in promise.reason
    training.leave()


def test_the_payload_can_be_read_by_others(root: Path, stack: Stack) -> None:
    saved(root, stack)
    repository = Repository.open(root, root.name)
    component = repository.load(repository.commits()[0]).components["gym"]
    payload = read_payload(component)
    assert sorted(payload.servers["res"].records) == ["0-0", "0-1", "0-2"]
    assert payload.servers["agent"].status.role == "agent"
    assert payload.settings["res"].config_hash == "as it was"
    assert payload.protocol == control.VERSION
    assert payload.time > 0


def test_a_save_costs_what_changed(root: Path, stack: Stack) -> None:
    training = Training(root, stack)
    training.begin()
    training.wait()
    before = _bytes(root)
    for i in range(1000):
        stack.resources.put(f"s{i}", {"total": i, "steps": 0, "noise": int(uuid.uuid4().hex * 20, 16)})
    training.step()
    first = _bytes(root) - before
    for i in (1, 500, 999):
        stack.resources.put(f"s{i}", {"total": i, "steps": 1})
    training.step()
    second = _bytes(root) - before - first
    assert second <= first * 0.05
    training.leave()
    again = Training(root, Stack())
    again.begin()
    again.leave()


def _bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def collected(training: Training, until: int, *, prompt: int) -> list[tuple[str, int, int]]:
    """Train to a step; return each rollout's id, the prompt that was sent, and that which was answered."""
    found: list[tuple[str, int, int]] = []
    step = training.begin()
    while True:
        (rollout,) = training.gym.collect([{"prompt": prompt, "weight": 0.0}])
        assert rollout.response is not None
        found.append((rollout.id, rollout.row["prompt"], rollout.response["response"]["prompt"]))
        if step >= until:
            return found
        step = training.step()


def back_to(step: int, root: Path, stack: Stack, **options: Any) -> Training:
    training = Training(root, stack)
    training.run = unbroken.Run(root, every=1, quiet=True, resume=step, **options)
    training.run.track(gym=training.gym)
    return training


def test_after_going_back_nothing_of_the_future_that_was_left_is_trained_on(
    root: Path, stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    """Agents keep the result of a step that the older checkpoint does not know, under the id that comes again."""
    first = Training(root, stack)
    collected(first, 5, prompt=1)
    first.leave()
    assert list(stack.agent.kept) == ["5-0"]
    again = back_to(2, root, stack)
    found = collected(again, 6, prompt=2)
    again.leave()
    assert [answered for _, _, answered in found] == [sent for _, sent, _ in found] == [2] * 5
    said = capsys.readouterr().err
    assert said.count("the training leaves what it had begun after this checkpoint") == 1
    assert "knew of a later checkpoint than this one" in said
    assert "drop what they have of 1 others" in said
    timeline = found[0][0].partition(".")[0]
    assert [name for name, _, _ in found] == [f"{timeline}.{i}-0" for i in range(2, 7)]
    # It is set back once, and not each time that it goes on.
    last = Training(root, stack)
    last.begin()
    assert last.gym.coordinator.ledger.timeline == f"{timeline}."
    assert "the training leaves" not in capsys.readouterr().err
    last.leave()


def test_a_restart_from_the_newest_checkpoint_stays_in_its_timeline(
    root: Path, stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Training(root, stack)
    collected(first, 3, prompt=1)
    first.leave()
    again = Training(root, stack)
    calls = stack.model.calls.total()
    found = collected(again, 3, prompt=1)
    assert stack.model.calls.total() == calls, "what had finished meanwhile is answered at once"
    assert found == [("3-0", 1, 1)]
    assert "the training leaves" not in capsys.readouterr().err
    again.leave()


def test_with_other_settings_nothing_of_the_former_ones_is_trained_on(
    root: Path, stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Training(root, stack)
    first.run.track(rate=Setting(0.5))
    collected(first, 2, prompt=1)
    first.leave()
    again = Training(root, stack)
    again.run = unbroken.Run(root, every=1, quiet=True, allow_changed={"rate"})
    again.run.track(gym=again.gym, rate=Setting(0.25))
    ((name, _, answered),) = collected(again, 2, prompt=2)
    assert (name.partition(".")[2], answered) == ("2-0", 2)
    assert "the settings" in capsys.readouterr().err
    again.step()
    again.leave()
    last = Training(root, stack)
    last.run = unbroken.Run(root, every=1, quiet=True, allow_changed={"rate"})
    last.run.track(gym=last.gym, rate=Setting(0.25))
    assert last.begin() == 3
    assert "the training leaves" not in capsys.readouterr().err, "these were saved with the checkpoint"
    last.leave()


class Setting:
    """A setting of the program, as a training has many."""

    def __init__(self, value: float) -> None:
        self.value = value


def test_a_session_that_its_server_has_refused_comes_from_the_checkpoint(root: Path, stack: Stack) -> None:
    """Its log has lost the session and the mark has grown: nobody is behind, and the checkpoint holds it."""
    saved(root, stack)
    del stack.resources.kept["0-1"]
    refused = control.Recovered(id="0-1", tier="refused", reasons=("a line of it is damaged",))
    stack.resources.recovery = control.Recovery(source="log", sessions=2, listed=(refused,))
    again = Training(root, stack)
    again.begin()
    assert sorted(stack.resources.kept) == ["0-0", "0-1", "0-2"]
    again.leave()


def test_a_log_that_has_lost_its_end_is_behind_whatever_it_counts_now(root: Path, stack: Stack) -> None:
    saved(root, stack)
    at = stack.resources.mark
    del stack.resources.kept["0-2"]
    stack.resources.recovered_mark, stack.resources.first_mark = at - 2, at + 1000
    stack.resources.mark = at + 1001
    again = Training(root, stack)
    again.begin()
    assert sorted(stack.resources.kept) == ["0-0", "0-1", "0-2"]
    again.leave()


@pytest.mark.parametrize("of", ["res", "agent"])
def test_a_log_that_was_put_back_from_a_copy_is_behind_at_every_later_start(
    root: Path, stack: Stack, of: str
) -> None:
    """Its marks say nothing any more: another start has read it since, and counts above all that was ever given."""
    stack.resources.keep("held", SessionRecord(id="held", attempt=1, revision=3))
    saved(root, stack)
    server: Resources | Agent = stack.resources if of == "res" else stack.agent
    if of == "res":
        server.keep("held", SessionRecord(id="held", attempt=1, revision=2))
    else:
        record = stack.agent.kept["0-1"]
        del record.answers[-1]
        server.keep("0-1", record)
    server.mark += 2000
    server.recovered_mark = server.first_mark = server.mark
    again = Training(root, stack)
    again.begin()
    assert "activate" in stack.agent.asked
    assert stack.resources.kept["held"].revision == 3
    assert len(stack.agent.kept["0-1"].answers) == 6
    again.leave()


def test_a_session_that_was_begun_anew_is_not_behind(root: Path, stack: Stack) -> None:
    stack.resources.keep("held", SessionRecord(id="held", attempt=1, revision=3))
    told = Answer(key="seed", scope="/run", server="res", path="/seed_session", status=200)
    stack.agent.keep("row-1", RolloutRecord(id="row-1", answers=[told]))
    saved(root, stack)
    stack.resources.keep("held", SessionRecord(id="held", attempt=2, revision=1))
    stack.agent.keep(
        "row-1", RolloutRecord(id="row-1", answers=[])
    )  # of somebody who is no trainer: answered
    again = Training(root, stack)
    again.begin()
    assert "activate" not in stack.agent.asked
    again.leave()


def test_an_image_that_comes_again_after_it_was_forgotten_is_in_the_checkpoint(
    root: Path, stack: Stack, tmp_path: Path
) -> None:
    """A server gives it once; in between no record has named it, and the segments were merged."""
    media = Media(tmp_path / "media")
    image = b'{"image": "data:image/png;base64,' + base64.b64encode(random.Random(1).randbytes(6000)) + b'"}'
    lifted = media.lift(image)
    (digest,) = Media.named(lifted)
    stack.resources.media[digest] = media.get(digest)

    def put(name: str) -> None:
        call = Call(path="/seed_session", arguments=lifted, status=200, revision=1, order=1)
        stack.resources.keep(name, SessionRecord(id=name, rollout=name, calls=[call]))

    def checkpoint() -> ServerPart:
        repository = Repository.open(root, root.name)
        return read_payload(repository.load(repository.commits()[0]).components["gym"]).servers["res"]

    training = Training(root, stack)
    training.begin()
    training.wait()
    put("a")
    training.step()
    assert set(checkpoint().media) == {digest}
    stack.resources.do_drop(control.Drop(rollouts=["a"]))
    for i in range(5):
        stack.resources.put(f"b{i}", {"total": i, "steps": 0})
    training.step()
    assert checkpoint().media == {}
    put("c")
    training.step()
    assert set(checkpoint().media) == {digest}
    training.leave()


def test_nothing_is_taken_over_while_servers_are_still_told_of_the_last_checkpoint(
    root: Path, stack: Stack
) -> None:
    training = Training(root, stack, sync_timeout=4.0)
    training.begin()
    training.wait()
    go_on = threading.Event()
    training.gym.coordinator._telling = threading.Thread(target=go_on.wait, args=(60,), daemon=True)
    training.gym.coordinator._telling.start()
    exports = stack.resources.asked.count("export")
    try:
        with pytest.raises((ServerMissing, SaveFailed), match="still being told of the last checkpoint"):
            training.step()
    finally:
        go_on.set()
    assert stack.resources.asked.count("export") == exports
    training.leave()
