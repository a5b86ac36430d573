"""A `Gym` that is tracked: undisturbed, killed and resumed, and left out; over servers that live, restart or are new."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

import unbroken
from unbroken.adapters.nemo_gym import control
from unbroken.adapters.nemo_gym.records import RolloutRecord
from unbroken.adapters.nemo_gym.trainer.payload import read_payload
from unbroken.errors import ConfigError, SaveFailed, ServerMissing, StateMismatch
from unbroken.nemo_gym import Gym
from unbroken.repo.repository import Repository
from unbroken.types import Fidelity

from .stand_in import TOKEN, Resources, Stack
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
    with training.gym._changed:
        training.gym._changed.wait_for(lambda: len(training.gym._ledger.finished("submit")) == 3, 30)
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
    training = Training(root, stack, sync_timeout=1.0)
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
    training = Training(root, stack, sync_timeout=1.0)
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
