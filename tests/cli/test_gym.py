"""`unbroken gym`: sessions in a checkpoint and in servers at work, the document as a file, a session that moves."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.nemo_gym.layered_examples import DIGEST, PNG, component, counter, segment, snapshot
from tests.adapters.nemo_gym.trainer import stand_in
from tests.adapters.nemo_gym.trainer.stand_in import Agent, Model, Resources
from tests.cli.command import unbroken
from tests.repo.states import meta
from tests.repo.states import snapshot as other_state
from tests.test_import import modules_after
from unbroken.adapters.nemo_gym import protocol
from unbroken.adapters.nemo_gym.keys import control_token
from unbroken.adapters.nemo_gym.records import RolloutRecord
from unbroken.repo.repository import Repository


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the state of NeMo Gym at the steps 1 and 2. Read only."""
    root = tmp_path_factory.mktemp("gym")
    with Repository.open(root, "run", create=True).writer() as writer:
        writer.write(snapshot(component({"counter": [segment(counter(count=4))]})), meta(1))
        writer.write(snapshot(component()), meta(2))
    return root / "run"


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Resources, Resources]]:
    """Two processes of one resources server; the first has a session."""
    monkeypatch.setattr(stand_in, "TOKEN", control_token())
    first, second = Resources("res"), Resources("res")
    first.put("s-1", {"total": 5, "steps": 1})
    first.epoch = 3  # a trainer has adopted it
    yield first, second
    first.stop()
    second.stop()


def test_sessions_of_a_checkpoint(run: Path) -> None:
    answer = unbroken("gym", "sessions", run, cwd=run)
    assert answer.code == 0
    head, *rows = [line.split() for line in answer.out.splitlines()]
    assert head[:4] == ["server", "session", "rollout", "attempt"]
    assert ["cards", "s-2", "8-0", "0", "2", "open", "/step", "d" * 12] in rows
    assert ["counter", "s-1", "7-0", "1", "4", "open", "/verify", "0" * 12] in rows
    assert answer.out.splitlines()[-1] == "2 sessions on 2 servers"
    (earlier,) = unbroken("gym", "sessions", f"{run}@1", "--json", cwd=run).json["sessions"]
    assert (earlier["session"], earlier["calls"], earlier["digest"]) == ("s-1", 4, f"{4:064x}")


def test_sessions_of_servers_at_work(servers: tuple[Resources, Resources], tmp_path: Path) -> None:
    first, second = servers
    answer = unbroken("gym", "sessions", first.url, f"127.0.0.1:{second.port}", cwd=tmp_path)
    assert answer.code == 0
    assert "s-1" in answer.out
    assert answer.out.splitlines()[-1] == "1 session on 1 server"
    (held,) = unbroken("gym", "sessions", first.url, "--digests", "--json", cwd=tmp_path).json["sessions"]
    assert held["place"] == first.url
    assert '"total": 5' in held["digest"]
    assert unbroken("gym", "sessions", second.url, cwd=tmp_path).out == "No sessions.\n"
    assert set(first.asked) <= {"status", "sessions", "digests"}


def test_rollouts_of_an_agent_at_work(servers: tuple[Resources, Resources], tmp_path: Path) -> None:
    model = Model("policy")
    agent = Agent("simple", resources=servers[0], model=model)
    agent.keep("7-0", RolloutRecord(id="7-0"))
    (held,) = unbroken("gym", "sessions", agent.url, "--json", cwd=tmp_path).json["sessions"]
    assert (held["server"], held["rollout"], held["kind"]) == ("simple", "7-0", "rollout")
    words = unbroken("gym", "sessions", agent.url, servers[0].url, cwd=tmp_path).out
    assert words.splitlines()[-1] == "1 session and 1 rollout on 2 servers"
    alone = unbroken("gym", "sessions", agent.url, cwd=tmp_path).out
    assert alone.splitlines()[-1] == "1 rollout on 1 server"
    agent.stop()
    model.stop()


@pytest.mark.parametrize("words", ["s-1", "7-0"])
def test_one_session_and_its_history(run: Path, words: str) -> None:
    answer = unbroken("gym", "show", run, words, cwd=run)
    assert answer.code == 0
    assert answer.out.startswith("session s-1: on counter, rollout 7-0")
    assert [line.split()[1] for line in answer.out.splitlines() if line.strip()[:1].isdigit()] == [
        "seed_session",
        "increment_counter",
        "look",
        "verify",
    ]
    document = unbroken("gym", "show", run, words, "--json", cwd=run).json
    whole = unbroken("gym", "export", run, cwd=run).json
    assert document == {"session": "s-1", **whole["environment"]["session_states"]["s-1"]}


def test_an_address_that_is_to_be_shown_is_told_what_lists_it(run: Path) -> None:
    answer = unbroken("gym", "show", "http://127.0.0.1:12001", "s-1", cwd=run)
    assert answer.code == 2
    assert "is a server's address" in answer.err
    assert "unbroken gym sessions http://127.0.0.1:12001 --digests" in answer.err


def test_a_session_that_is_not_there_or_not_clear(run: Path) -> None:
    missing = unbroken("gym", "show", run, "nobody", cwd=run)
    assert missing.code == 2
    assert "unbroken gym sessions" in missing.err
    several = unbroken("gym", "show", run, "s", "--json", cwd=run)
    assert several.code == 2
    assert "s-1" in several.json["error"]["message"]
    assert "s-2" in several.json["error"]["message"]


def test_export_to_standard_output_is_the_document_with_its_digest(run: Path) -> None:
    answer = unbroken("gym", "export", run, cwd=run)
    state = protocol.read(answer.out.encode())
    assert state.integrity is not None
    assert list(state.environment.session_states) == ["s-2", "s-1"]
    assert state.metadata.total_steps == 2


def test_export_to_a_file_with_its_images(run: Path, tmp_path: Path) -> None:
    out, media = tmp_path / "state.json", tmp_path / "images"
    answer = unbroken("gym", "export", run, "--out", out, "--media", media, "--json", cwd=tmp_path)
    assert answer.code == 0
    assert answer.json["media"] == [f"{DIGEST}.png"]
    assert (media / f"{DIGEST}.png").read_bytes() == PNG
    assert answer.json["bytes"] == out.stat().st_size
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert protocol.read(out.read_bytes()).integrity is not None
    again = unbroken("gym", "export", run, "--out", out, cwd=tmp_path)
    assert again.code == 2
    assert "--force" in again.err
    assert unbroken("gym", "export", run, "--out", out, "--force", cwd=tmp_path).code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "state.json"]


def test_a_file_is_checked(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "state.json"
    unbroken("gym", "export", run, "--out", out, cwd=tmp_path)
    good = unbroken("gym", "export", "--check", out, cwd=tmp_path)
    assert (good.code, good.out) == (0, f"{out}: version 1.0.0, 2 sessions: as exported\n")
    text = out.read_text()
    out.write_text(text.replace('"reward": 1.0', '"reward": 2.0', 1))
    changed = unbroken("gym", "export", "--check", out, "--json", cwd=tmp_path)
    assert changed.code == 1
    assert "changed since" in changed.json["problem"]
    bare = json.loads(text)
    del bare["_integrity"]
    out.write_text(json.dumps(bare))
    assert unbroken("gym", "export", "--check", out, cwd=tmp_path).code == 1
    out.write_text(json.dumps({**bare, "version": "2.0.0"}))
    newer = unbroken("gym", "export", "--check", out, cwd=tmp_path)
    assert newer.code == 2
    assert "2.0.0" in newer.err
    assert unbroken("gym", "export", "--check", tmp_path / "nothing", cwd=tmp_path).code == 2


@pytest.mark.parametrize("words", [(), ("RUN", "--check", "FILE")])
def test_export_wants_a_run_or_a_file(words: tuple[str, ...], tmp_path: Path) -> None:
    answer = unbroken("gym", "export", *words, cwd=tmp_path)
    assert answer.code == 2
    assert "either" in answer.err


def test_a_run_without_nemo_gym_says_so(tmp_path: Path) -> None:
    with Repository.open(tmp_path, "run", create=True).writer() as writer:
        writer.write(other_state(), meta(1))
    answer = unbroken("gym", "sessions", tmp_path / "run", cwd=tmp_path)
    assert answer.code == 2
    assert "holds nothing of NeMo Gym" in answer.err


def test_the_schema_is_printed(tmp_path: Path) -> None:
    assert unbroken("gym", "schema", cwd=tmp_path).json == protocol.schema()


def test_a_session_moves_and_the_trainer_stays_the_coordinator(
    servers: tuple[Resources, Resources], tmp_path: Path
) -> None:
    first, second = servers
    answer = unbroken(
        "gym", "migrate", "s-1", "--from", first.url, "--to", second.url, "--json", cwd=tmp_path
    )
    assert answer.code == 0, answer.err
    assert answer.json == {"session": "s-1", "from": first.url, "to": second.url}
    assert (list(first.kept), list(second.kept)) == ([], ["s-1"])
    assert (first.epoch, second.epoch) == (3, 0)
    assert "adopt" not in first.asked + second.asked


def test_a_session_that_moves_may_be_named_by_the_beginning_of_its_id(
    servers: tuple[Resources, Resources], tmp_path: Path
) -> None:
    first, second = servers
    first.put("s-22", {"total": 7, "steps": 1})
    words = ("gym", "migrate", "s", "--from", first.url, "--to", second.url)
    several = unbroken(*words, cwd=tmp_path)
    assert several.code == 2
    assert "may be any of 2 sessions: s-1, s-22" in " ".join(several.err.split())
    assert "surrender" not in first.asked
    answer = unbroken("gym", "migrate", "s-2", "--from", first.url, "--to", second.url, cwd=tmp_path)
    assert answer.out == f"s-22: {first.url} -> {second.url}\n"
    assert (list(first.kept), list(second.kept)) == (["s-1"], ["s-22"])


def test_a_session_that_the_target_refuses_stays(
    servers: tuple[Resources, Resources], tmp_path: Path
) -> None:
    first, second = servers
    second.spoilt.add("s-1")
    answer = unbroken("gym", "migrate", "s-1", "--from", first.url, "--to", second.url, cwd=tmp_path)
    assert answer.code == 2
    assert list(first.kept) == ["s-1"]
    assert first.asked[-1] == "settle"


def test_what_cannot_be_migrated_is_said_before_anything_is_touched(
    servers: tuple[Resources, Resources], tmp_path: Path
) -> None:
    first, second = servers
    other = Resources("res")
    other.class_name = "Another"
    model = Model("policy")
    for session, source, target, word in (
        ("s-9", first.url, second.url, "has no session s-9"),
        ("s-1", first.url, first.url, "the same server"),
        ("s-1", first.url, other.url, "is a CounterResourcesServer and"),
        ("s-1", model.url, first.url, "of the role 'model'"),
        ("s-1", "runs/gym", first.url, "is no address"),
    ):
        answer = unbroken("gym", "migrate", session, "--from", source, "--to", target, cwd=tmp_path)
        assert answer.code == 2, word
        assert word in " ".join(answer.err.split())
    assert "surrender" not in first.asked
    other.stop()
    model.stop()


def test_another_token_is_refused(
    servers: tuple[Resources, Resources], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_in, "TOKEN", "another")
    answer = unbroken("gym", "sessions", servers[0].url, "--json", cwd=tmp_path)
    assert answer.code == 2
    assert answer.json["error"]["kind"] == "ConfigError"


def test_a_server_that_is_not_there_is_named(servers: tuple[Resources, Resources], tmp_path: Path) -> None:
    gone = Resources("gone")
    gone.stop()
    answer = unbroken("gym", "sessions", gone.url, cwd=tmp_path)
    assert answer.code == 2
    assert gone.url in " ".join(answer.err.split())


def test_the_command_starts_without_what_reads_nemo_gym() -> None:
    loaded = modules_after("import unbroken.cli.app")
    assert not {name for name in loaded if name.startswith(("unbroken.adapters.nemo_gym", "httpx", "http."))}
    assert "unbroken.cli.gym" in loaded
