from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.adapters.nemo_gym.sessions import servers
from tests.adapters.nemo_gym.sessions.servers import Clocked, Judge, Lazy, Server, Table, session
from unbroken.adapters.nemo_gym.records import Encoded
from unbroken.adapters.nemo_gym.sessions.states import SessionStates
from unbroken.errors import ConfigError, CorruptObject, StateMismatch, UnsupportedFormat, Untrusted

KEY = b"k" * 32


def states_of(server: object, **options: Any) -> SessionStates:
    return SessionStates(server, key=KEY, **options)


def captured(states: SessionStates, name: str) -> Encoded:
    encoded = states.capture(name)
    assert encoded is not None, states.reason(name)
    return encoded


def test_every_map_that_has_the_session_is_captured_also_below_and_sets() -> None:
    class Tools:
        def __init__(self) -> None:
            self.timing: dict[str, float] = {}

    fields: dict[str, Any] = {"counters": {}, "nested": {"a": {}, "b": {}}, "done": set[str](), "note": "x"}
    server = Server(fields, {"_tools": Tools(), "_order": OrderedDict(), "_many": defaultdict(list)})
    states = states_of(server)
    private: Any = vars(server)["__pydantic_private__"]
    fields["counters"]["s"] = 1
    fields["nested"]["b"]["s"] = {"x": [1]}
    fields["done"].add("s")
    private["_tools"].timing["s"] = 0.5
    private["_order"]["s"] = "first"
    private["_many"]["s"].append(3)
    encoded = captured(states, "s")
    assert states.context("s") == {
        "counters": 1, "nested[b]": {"x": [1]}, "done{}": True, "_tools.timing": 0.5, "_order": "first", "_many": [3],
    }  # fmt: skip

    twin = Server(
        {"counters": {}, "nested": {"a": {}, "b": {}}, "done": set[str](), "note": "x"},
        {"_tools": Tools(), "_order": OrderedDict(), "_many": defaultdict(list)},
    )
    other = states_of(twin)
    other.install("s", other.decode(encoded))
    assert other.context("s") == states.context("s")
    assert other.digest("s") == states.digest("s") == encoded.digest
    other.remove("s")
    assert other.digest("s") == ""
    assert not vars(twin)["done"]


def test_what_refers_to_one_object_still_does_and_bound_methods_work_on_it() -> None:
    one = session(1)
    server = Server({"sessions": {"s": one}, "tables": {"s": one.table}})
    states = states_of(server)
    encoded = captured(states, "s")
    twin = Server({"sessions": {}, "tables": {}})
    maps = vars(twin)["sessions"]
    other = states_of(twin)
    other.install("s", other.decode(encoded))
    again = vars(twin)["sessions"]["s"]
    assert vars(twin)["sessions"] is maps
    assert again.total.__self__ is again.table is vars(twin)["tables"]["s"]
    assert again is not one
    assert again.rng.random() == one.rng.random()
    again.table.rows.append(5)
    assert again.total() == 8
    assert other.digest("s") != states.digest("s")


def test_the_server_and_what_it_shares_are_not_copied() -> None:
    shared = Table([7])
    server = Server({"sessions": {}, "book": shared, "pages": {"a": Table([1])}})
    states = states_of(server)
    vars(server)["sessions"]["s"] = session(1, server=server, shared=[shared, vars(server)["pages"]["a"]])
    encoded = captured(states, "s")
    twin = Server({"sessions": {}, "book": Table([7]), "pages": {"a": Table([1])}})
    other = states_of(twin)
    other.install("s", other.decode(encoded))
    again = vars(twin)["sessions"]["s"]
    assert again.server is twin
    assert again.shared[0] is vars(twin)["book"]
    assert again.shared[1] is vars(twin)["pages"]["a"]
    assert other.digest("s") == states.digest("s")


def test_what_is_shared_may_be_installed_between_reading_a_session_and_installing_it() -> None:
    server = Server({"sessions": {}, "book": Table([7]), "hits": 0})
    states = states_of(server)
    vars(server)["book"] = Table([8, 9])
    vars(server)["hits"] = 3
    vars(server)["sessions"]["s"] = session(1, shared=vars(server)["book"])
    shared = states.shared()
    assert shared is not None
    encoded = captured(states, "s")
    twin = Server({"sessions": {}, "book": Table([7]), "hits": 0})
    other = states_of(twin)
    decoded = other.decode(encoded)
    other.install_shared(other.decode(shared))
    other.install("s", decoded)
    assert vars(twin)["book"] == Table([8, 9])
    assert vars(twin)["hits"] == 3
    assert vars(twin)["sessions"]["s"].shared is vars(twin)["book"]


def test_shared_state_is_what_changed_since_the_server_was_built_and_stays_in_place() -> None:
    server = Server({"sessions": {}, "cache": {"a": 1}, "list": [1], "prompts": {"p": "text"}})
    states = states_of(server)
    assert states.shared() is None
    vars(server)["cache"]["b"] = 2
    vars(server)["list"].append(2)
    vars(server)["sessions"].update({"s": 1, "default": 9})
    states.know("s")
    encoded = states.shared()
    assert encoded is not None
    twin = Server({"sessions": {}, "cache": {"a": 1}, "list": [1], "prompts": {"p": "text"}})
    cache, entries = vars(twin)["cache"], vars(twin)["list"]
    other = states_of(twin)
    decoded = other.decode(encoded)
    assert decoded.value == {
        "attributes": {"cache": {"a": 1, "b": 2}, "list": [1, 2]},
        "others": {"sessions": {"default": 9}},
    }
    other.install_shared(decoded)
    assert cache == {"a": 1, "b": 2}
    assert entries == [1, 2]
    assert vars(twin)["sessions"] == {"default": 9}
    assert states.cache() == {
        "cache": "dict with 2 entries", "list": "list with 2 entries", "prompts": "dict with 1 entries"
    }  # fmt: skip


def test_a_state_installed_twice_is_not_one_object() -> None:
    server = Server({"sessions": {"s": [1]}})
    decoded = states_of(server).decode(captured(states_of(server), "s"))
    twins = [Server({"sessions": {}}), Server({"sessions": {}})]
    for twin in twins:
        states_of(twin).install("s", decoded)
    assert vars(twins[0])["sessions"]["s"] is not vars(twins[1])["sessions"]["s"]


def test_installing_takes_away_what_the_session_had_besides() -> None:
    server = Server({"a": {"s": 1}, "b": {}})
    encoded = captured(states_of(server), "s")
    twin = Server({"a": {"s": 5}, "b": {"s": 6, "t": 7}})
    other = states_of(twin)
    other.install("s", other.decode(encoded))
    assert (vars(twin)["a"], vars(twin)["b"]) == ({"s": 1}, {"t": 7})


def test_a_server_that_lacks_an_attribute_is_not_touched() -> None:
    server = Server({"a": {"s": 1}, "b": {"s": 2}})
    states = states_of(server)
    encoded = captured(states, "s")
    twin = Server({"a": {"s": 5}, "b": 3})
    other = states_of(twin)
    with pytest.raises(StateMismatch, match="has no dict b"):
        other.install("s", other.decode(encoded))
    assert vars(twin)["a"] == {"s": 5}
    vars(server)["c"] = [1]
    shared = states.shared()
    assert shared is not None
    with pytest.raises(StateMismatch, match="has no c"):
        other.install_shared(other.decode(shared))
    with pytest.raises(StateMismatch, match="has no dict attributes"):
        other.install("s", other.decode(shared))


def test_maps_that_a_server_makes_when_it_needs_them_are_made() -> None:
    server = Lazy()
    states = states_of(server)
    server.seed("s")
    encoded = captured(states, "s")
    twin = Lazy()
    other = states_of(twin)
    other.install("s", other.decode(encoded))
    assert other.context("s") == {"maps": 1, "_others": 2}


def test_globals_of_the_servers_module_are_searched() -> None:
    server = Lazy()
    states = states_of(server)
    servers.COUNTS["s"] = 4
    try:
        encoded = captured(states, "s")
        states.remove("s")
        assert servers.COUNTS == {}
        states.install("s", states.decode(encoded))
        assert servers.COUNTS == {"s": 4}
    finally:
        servers.COUNTS.clear()


def test_one_session_that_cannot_be_captured_does_not_spoil_the_others() -> None:
    def live() -> Any:
        yield 1

    server = Server({"sessions": {}})
    states = states_of(server)
    before = states.capability
    assert before == "snapshot"
    server.sessions |= {"good": 1, "bad": {"steps": [0, session(1, shared=live())]}}
    assert states.capture("bad") is None
    assert "sessions['steps'][1].shared is a generator" in states.reason("bad")
    assert states.capture("good") is not None
    assert states.reason("good") == ""
    assert states.capability == "replay"
    assert states.digest("bad")


def test_classes_that_raise_anything_when_they_are_copied_are_named() -> None:
    class Odd:
        def __reduce__(self) -> Any:
            raise ZeroDivisionError("no")

    states = states_of(Server({"sessions": {"s": [Odd()]}}))
    assert states.capture("s") is None
    assert "sessions[0] is of class" in states.reason("s")
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    states = states_of(Server({"sessions": {}}))
    vars(states._attributes.server)["sessions"]["s"] = deep
    assert states.capture("s") is None
    assert "nested too deeply" in states.reason("s")
    assert states.digest("s") != ""

    class Strange:
        dtype = None

        def tobytes(self) -> bytes:
            return b""

    Strange.__module__ = "numpy"
    states = states_of(Server({"sessions": {"s": Strange(), "t": 1}, "odd": Strange()}))
    assert states.digest("s")
    assert any(line.startswith("odd: holds an object of ") for line in states.exclusions)
    assert states.capture("t") is not None


def test_processes_sockets_and_files_are_named() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with process, open(os.devnull) as file:
        server = Server({"sessions": {"p": {"x": process}, "f": {"x": file}}})
        states = states_of(server)
        assert states.capture("p") is None
        assert "sessions['x'] is a process (subprocess.Popen)" in states.reason("p")
        assert states.capture("f") is None
        assert "sessions['x'] is an open file" in states.reason("f")
        process.kill()


def test_locks_that_nobody_holds_are_made_anew_and_one_in_use_is_refused() -> None:
    lock = asyncio.Lock()
    made = session(1, lock=[lock, threading.Lock(), asyncio.Event(), asyncio.Semaphore(2), threading.RLock()])
    made.lock[2].set()
    server = Server({"sessions": {"s": made}})
    states = states_of(server)
    encoded = captured(states, "s")
    assert any(note.startswith("asyncio.locks.Lock") for note in encoded.excluded)
    twin = Server({"sessions": {}})
    other = states_of(twin)
    other.install("s", other.decode(encoded))
    again = vars(twin)["sessions"]["s"].lock
    assert [type(part) for part in again] == [type(part) for part in made.lock]
    assert again[0] is not lock
    assert again[2].is_set()
    assert other.digest("s") == states.digest("s")
    asyncio.run(lock.acquire())
    assert states.capture("s") is None
    assert "held or awaited" in states.reason("s")
    assert states.capability == "snapshot"  # it passes
    lock.release()
    captured(states, "s")


def test_an_object_under_two_names_is_looked_into() -> None:
    table, rng = Table([1]), random.Random(1)
    server = Server({"sessions": {}, "a": table, "b": table, "rng": rng, "using": [rng]})
    states = states_of(server)
    assert states.shared() is None
    table.rows.append(2)
    rng.random()
    shared = states.shared()
    assert shared is not None
    attributes = states.decode(shared).value["attributes"]
    assert attributes["a"] is attributes["b"]
    assert attributes["a"] == table
    assert attributes["rng"].getstate() == rng.getstate()


def test_locks_of_a_server_lower_no_promise_unless_one_is_held() -> None:
    lock, gate, event = asyncio.Lock(), asyncio.Semaphore(2), asyncio.Event()
    fields: dict[str, Any] = {"sessions": {}, "lock": lock, "gate": gate, "event": event}
    server = Server({**fields, "both": [threading.RLock(), asyncio.Lock()], "guard": asyncio.Condition()})
    states = states_of(server, exclude=["mine"])
    states.know("s")
    vars(server)["sessions"]["s"] = 1
    assert (states.exclusions, states.capability) == ((), "snapshot")
    for taken in (lock, gate):
        asyncio.run(taken.acquire())
        assert len(states.exclusions) == 1
        assert states.capability == "snapshot_with_exclusions"
        taken.release()
    event.set()  # was not when the server was built
    assert states.exclusions == ("event: an event",)
    assert states_of(server).exclusions == ()


def test_moments_keep_how_long_ago_they_were() -> None:
    server = Clocked()
    states = states_of(server)
    server.seed("s")
    shared = states.shared()
    assert shared is not None
    encoded = captured(states, "s")
    digest = states.digest("s")
    twin = Clocked()
    other = states_of(twin)
    elsewhere = msgspec.structs.replace(encoded, clock=encoded.clock - 1000.0)  # a clock that began later
    decoded = other.decode(elsewhere)
    assert decoded.age >= 1000.0
    other.install("s", decoded)
    assert twin.since["s"] == server.since["s"] + decoded.age
    assert twin.names["s"]["deadline"] == server.names["s"]["deadline"] + decoded.age
    assert twin.names["s"]["weight"] == 2.5
    assert other.digest("s") == digest
    moment = other.decode(msgspec.structs.replace(shared, clock=shared.clock - 1000.0))
    other.install_shared(moment)
    assert twin.last == server.last + moment.age
    server.names["s"]["weight"] = 2.0
    assert states.digest("s") != digest


def test_a_pickle_is_not_loaded_before_its_seal_is_verified(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "run"),)

    server = Server({"sessions": {"s": {"trap": Trap()}}})
    states = states_of(server)
    encoded = captured(states, "s")
    forged = msgspec.structs.replace(encoded, data=encoded.data + b" ")
    for bad in (
        forged,
        msgspec.structs.replace(encoded, digest="0" * 32),
        msgspec.structs.replace(encoded, form="json"),
    ):
        with pytest.raises(Untrusted, match="seal"):
            states.decode(bad)
    with pytest.raises(Untrusted):
        SessionStates(server, key=b"x" * 32).decode(encoded)
    assert not (tmp_path / "run").exists()
    with pytest.raises(CorruptObject):  # it is ours, so it runs; what comes out is not what went in
        states.decode(encoded)
    assert (tmp_path / "run").exists()


def test_code_of_another_python_is_refused() -> None:
    pytest.importorskip("cloudpickle")
    server = Server({"sessions": {"s": {"rule": lambda x: x + 1}}})
    states = states_of(server)
    encoded = captured(states, "s")
    assert states.decode(encoded).value["sessions"]["rule"](1) == 2
    with pytest.raises(UnsupportedFormat, match=r"3\.9.*lambda"):
        states.decode(msgspec.structs.replace(encoded, python="3.9"))


def test_plain_state_is_json_and_large_state_is_packed() -> None:
    server = Server({"sessions": {"a": {"x": [1, 0.1, "ä", None]}, "b": ["word"] * 1000, "c": {1: 2}}})
    states = states_of(server)
    assert captured(states, "a").data == '{"sessions":{"x":[1,0.1,"ä",null]}}'.encode()
    assert captured(states, "b").packed
    assert captured(states, "c").form == "pickle"
    for name in ("a", "b", "c"):
        decoded = states.decode(captured(states, name))
        assert decoded.value == {"sessions": vars(server)["sessions"][name]}


def test_state_that_changes_when_it_is_pickled_is_found() -> None:
    server = Server({"sessions": {"s": Forgetful()}})
    states = states_of(server)
    with pytest.raises(CorruptObject, match="once it is read"):
        states.decode(captured(states, "s"))


class Forgetful:
    def __init__(self) -> None:
        self.kept = random.random()

    def __getstate__(self) -> dict[str, Any]:
        return {"kept": self.kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.kept = 0.0


def test_what_a_class_says_before_any_traffic() -> None:
    judge = states_of(Judge())
    assert judge.capability == "stateless"
    assert judge.exclusions == (), "locks that nobody holds are no state"
    assert states_of(Clocked()).capability == "snapshot"
    assert states_of(Clocked(), capability="replay").capability == "replay"
    waiting = Server({"groups": {}, "sessions": {}})
    states = states_of(waiting)
    vars(waiting)["groups"]["g"] = asyncio.Event()
    assert states.capability == "drain_only"
    vars(waiting)["groups"].clear()
    vars(waiting)["groups"]["s"] = asyncio.Event()  # a session's own
    captured(states, "s")
    assert states.capability.startswith("snapshot")


def test_what_cannot_be_compared_is_named_and_left() -> None:
    def steps() -> Any:
        yield 1

    server = Server({"feed": {"x": steps(), "y": 1}, "mine": {"z": 1}, "sessions": {}})
    states = states_of(server, exclude=["mine"])
    vars(server)["mine"]["z"] = 2
    assert states.shared() is None
    feed = next(line for line in states.exclusions if line.startswith("feed:"))
    assert "generator" in feed
    assert not any(line.startswith("mine") for line in states.exclusions)
    assert states.notes == ("mine: no state, says the user, and left as the server builds it",)
    assert states.capability == "snapshot_with_exclusions"
    vars(server)["later"] = {"x": steps(), "y": 1}
    vars(server)["count"] = 1
    shared = states.shared()
    assert shared is not None
    assert states.decode(shared).value["attributes"] == {"count": 1}
    assert any(line.startswith("later: ") for line in states.exclusions)
    with pytest.raises(ConfigError):
        states_of(server, exclude="mine")


def test_the_digest_is_the_same_in_another_process() -> None:
    program = (
        "from tests.adapters.nemo_gym.sessions.test_states import *\n"
        "server = Server({'s': {'s': session(3)}, 'w': {'s': {'b', 'a', 'c', frozenset('xyz')}}})\n"
        "print(states_of(server).digest('s'))\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True, text=True, check=True, cwd=Path(__file__).parents[4],
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    server = Server({"s": {"s": session(3)}, "w": {"s": {"b", "a", "c", frozenset("xyz")}}})
    assert found == {states_of(server).digest("s") + "\n"}
