"""Where servers answer."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from unbroken.adapters.nemo_gym.launch.placing import place
from unbroken.adapters.nemo_gym.launch.record import Record, free_port
from unbroken.errors import ConfigError


def config(**ports: int | None) -> dict[str, Any]:
    return {
        name: {"resources_servers": {"x": {"entrypoint": "app.py", "port": port}}}
        for name, port in ports.items()
    }


def test_ports_that_were_drawn_stay(tmp_path: Path) -> None:
    record = Record(tmp_path / "servers.json")
    fixed = free_port("127.0.0.1", [])
    first = place(config(a=None, b=fixed), record, head=False, after_kill=False)
    assert [one.name for one in first.instances] == ["a", "b"]
    assert first.instances[1].port == fixed
    assert set(record.ports) == {"a", "head_server"}
    again = place(config(a=None, b=fixed), record, head=False, after_kill=False)
    assert again == first
    assert again.config["a"]["resources_servers"]["x"]["port"] == record.ports["a"]


def test_a_drawn_port_that_somebody_else_has_is_drawn_anew_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = Record(tmp_path / "servers.json")
    place(config(a=None), record, head=False, after_kill=False)
    port = record.ports["a"]
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        placed = place(config(a=None), record, head=False, after_kill=False)
    assert placed.instances[0].port == record.ports["a"] != port
    assert f"its port {port} is taken" in capsys.readouterr().err


def test_two_servers_at_one_port_are_refused(tmp_path: Path) -> None:
    port = free_port("127.0.0.1", [])
    with pytest.raises(ConfigError, match="another server"):
        place(config(a=port, b=port), Record(tmp_path / "servers.json"), head=False, after_kill=False)


def test_a_head_server_is_started_last_and_only_if_asked_for(tmp_path: Path) -> None:
    given = {**config(a=None), "head_server": {"host": "127.0.0.1", "port": free_port("127.0.0.1", [])}}
    placed = place(given, Record(tmp_path / "servers.json"), head=True, after_kill=False)
    assert [one.name for one in placed.instances] == ["a", "head_server"]
    assert placed.config["head_server"] == given["head_server"]


def test_ports_are_drawn_from_the_range_that_is_given(tmp_path: Path) -> None:
    port = free_port("127.0.0.1", [])
    record = Record(tmp_path / "servers.json")
    head = {"head_server": {"port": 11000}}
    placed = place(
        {**config(a=None), **head, "port_range_low": port, "port_range_high": port},
        record,
        head=False,
        after_kill=False,
    )
    assert placed.instances[0].port == port
    with pytest.raises(ConfigError, match="port_range_low"):
        place(
            {**config(a=None), "port_range_low": 2, "port_range_high": 1},
            record,
            head=False,
            after_kill=False,
        )


def test_who_is_started_elsewhere_is_not_started_here_and_keeps_its_port(tmp_path: Path) -> None:
    port = free_port("127.0.0.1", [])
    record = Record(tmp_path / "servers.json")
    placed = place(config(a=None, b=port), record, head=False, after_kill=False, external={"b"})
    assert [one.name for one in placed.instances] == ["a"]
    assert placed.instances[0].port != port


@pytest.mark.parametrize(("name", "says"), [("b", "has no port there"), ("c", "is not in the configuration")])
def test_who_is_started_elsewhere_needs_an_address(name: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        place(
            config(a=None, b=None),
            Record(tmp_path / "servers.json"),
            head=False,
            after_kill=False,
            external={name},
        )


def test_official_commands_are_told_where_a_head_server_is_that_is_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = Record(tmp_path / "servers.json", ports={"head_server": free_port("127.0.0.1", [])})
    port = record.ports["head_server"]
    placed = place(config(a=None), record, head=True, after_kill=False)
    assert placed.config["head_server"] == {"host": "127.0.0.1", "port": port}
    assert f"give them ++head_server.host=127.0.0.1 ++head_server.port={port}" in capsys.readouterr().err
    given = {**config(a=None), "head_server": {"host": "127.0.0.1", "port": port}}
    place(given, record, head=True, after_kill=False)
    assert capsys.readouterr().err == ""  # who fixes it knows it
