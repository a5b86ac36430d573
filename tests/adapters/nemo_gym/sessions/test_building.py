"""What a server drew when it was built comes back in a server that is built again."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.nemo_gym.sessions.servers import Judge, Server, Table
from tests.adapters.nemo_gym.sessions.test_states import states_of
from unbroken.adapters.nemo_gym.sessions import building

DRAWN = "as its log has it; it was drawn anew when the server was built"


class Dealer:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.deck = rng.sample(range(52), 52)


def drawing(**more: Any) -> Server:
    rng = random.Random()
    fields: dict[str, Any] = {
        "sessions": {}, "prompts": {"p": "text"}, "bonus": random.random(), "rng": rng, "dealer": Dealer(random.Random()),
        "table": Table([7]), "using": [rng], "order": random.sample(range(100), 50),
    }  # fmt: skip
    return Server({**fields, **more})


def test_what_is_drawn_when_a_server_is_built_comes_back_in_the_next() -> None:
    server = drawing()
    built = states_of(server).built()
    one, other = vars(server), vars(drawing())
    control = vars(drawing())
    assert other["bonus"] != one["bonus"] != control["bonus"], "C: without it they differ"
    twin = drawing()
    again = vars(twin)
    held = {name: again[name] for name in ("rng", "dealer", "prompts", "table", "using", "order")}
    deal = again["dealer"].rng
    states = states_of(twin)
    notes = states.install_built(built)
    assert {note.partition(":")[0] for note in notes} == {"bonus", "rng", "dealer", "order"}
    assert all(note.endswith(DRAWN) for note in notes)
    assert again["bonus"] == one["bonus"]
    assert again["order"] == one["order"]
    assert again["dealer"].deck == one["dealer"].deck
    assert [again["rng"].random() for _ in range(5)] == [one["rng"].random() for _ in range(5)]
    assert again["dealer"].rng.random() == one["dealer"].rng.random()
    assert all(again[name] is value for name, value in held.items()), "others may refer to them"
    assert again["using"][0] is again["rng"]
    assert deal is not None
    assert states.exclusions == ()


def test_what_was_put_back_is_no_change_by_a_call_but_is_written_with_what_sessions_share() -> None:
    server, twin = Judge(), Judge()
    vars(server)["_salt"], vars(twin)["_salt"] = 0.25, 0.75
    built = states_of(server).built()
    states = states_of(twin)
    assert states.capability == "stateless"
    states.install_built(built)
    shared = states.shared()
    assert shared is not None
    assert states.decode(shared).value["attributes"] == {"_salt": 0.25}
    assert states.capability == "stateless"


def test_what_is_too_large_or_cannot_be_kept_is_named_if_it_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(building, "LARGEST", 1000)

    def built_with(value: float) -> Server:
        return drawing(large=[random.random() for _ in range(500)], same=list(range(5000)), held={"x": value})

    server = built_with(1.0)
    built = states_of(server).built()
    assert {"large", "same"} <= set(built.left)
    twin = built_with(1.0)
    assert states_of(twin).exclusions == ()
    states = states_of(twin)
    states.install_built(built)
    named = {line.partition(":")[0]: line for line in states.exclusions}
    assert named["large"] == "large: drawn anew when the server was built, and too large to keep"
    assert "same" not in named
    assert "held" not in named


def test_where_something_is_stays_as_this_start_has_it(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    new.mkdir()
    server = drawing(judge="http://127.0.0.1:1", port=1, folder=str(old), name="a" * 300, at=time.time())
    built = states_of(server).built()
    twin = drawing(judge="http://127.0.0.1:2", port=2, folder=str(new), name="b" * 300, at=0.5)
    states = states_of(twin)
    notes = states.install_built(built)
    now = vars(twin)
    assert (now["judge"], now["port"], now["folder"]) == ("http://127.0.0.1:2", 2, str(new))
    assert now["name"] == "a" * 300
    assert now["at"] == vars(server)["at"]
    assert sum("is that of this start" in note for note in notes) == 3


def test_under_another_configuration_nothing_is_put_back_and_it_is_said() -> None:
    server, twin = drawing(), drawing()
    built = states_of(server).built()
    vars(twin)["config"] = {"prompt": "another"}
    states = states_of(twin)
    bonus = vars(twin)["bonus"]
    assert states.install_built(built) == ()
    assert vars(twin)["bonus"] == bonus
    assert any(line.startswith("bonus: drawn anew") and "configuration" in line for line in states.exclusions)


def test_locks_and_what_the_user_excludes_are_left() -> None:
    server, twin = drawing(lock=threading.Lock()), drawing(lock=threading.Lock())
    lock, bonus = vars(twin)["lock"], vars(twin)["bonus"]
    built = states_of(server, exclude=["bonus"]).built()
    states = states_of(twin, exclude=["bonus"])
    states.install_built(built)
    assert vars(twin)["lock"] is lock
    assert vars(twin)["bonus"] == bonus
