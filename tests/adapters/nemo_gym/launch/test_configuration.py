"""What a configuration names, and what is written into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unbroken.adapters.nemo_gym.launch import configuration
from unbroken.adapters.nemo_gym.launch.configuration import Instance
from unbroken.errors import ConfigError

CONFIG: dict[str, Any] = {
    "default_host": "127.0.0.2",
    "policy_model_name": "m",
    "res": {"resources_servers": {"blackjack": {"entrypoint": "app.py", "port": 12001, "host": "127.0.0.1"}}},
    "agent": {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", "num_workers": 2}}},
    "no_server": {"resources_servers": {"x": {"domain": "agent"}}},
}


def test_instances_in_their_order() -> None:
    assert configuration.instances(CONFIG) == (
        Instance("res", "resources_servers", "blackjack", "app.py", "127.0.0.1", 12001),
        Instance("agent", "responses_api_agents", "simple_agent", "app.py", "127.0.0.2", None, 2),
    )


@pytest.mark.parametrize("config", [{}, {"a": 1}, {"a": {"resources_servers": {}}}])
def test_a_configuration_without_servers_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="names no server"):
        configuration.instances(config)


def test_a_name_that_would_leave_its_directory_is_refused() -> None:
    with pytest.raises(ConfigError, match="slashes"):
        configuration.instances({"../x": CONFIG["res"]})


def test_addresses_are_written_into_a_copy() -> None:
    placed = [Instance("agent", "responses_api_agents", "simple_agent", "app.py", "127.0.0.1", 10007)]
    config = configuration.with_addresses(CONFIG, placed, head=("127.0.0.1", 10009))
    assert config["agent"]["responses_api_agents"]["simple_agent"]["port"] == 10007
    assert config["head_server"] == {"host": "127.0.0.1", "port": 10009}
    assert config["dry_run"] is False
    assert "port" not in CONFIG["agent"]["responses_api_agents"]["simple_agent"]
    assert "head_server" not in CONFIG


def test_settings_of_an_unknown_server_name_the_known() -> None:
    with pytest.raises(ConfigError, match="res, agent"):
        configuration.settings_of(CONFIG, "policy_model")


@pytest.mark.parametrize(
    ("config", "needed"),
    [
        (CONFIG, False),
        ({"config_paths": ["a.yaml"]}, True),
        ({"res": {"_inherit_from": "other"}}, True),
        ({"res": {"a": ["${policy_base_url}"]}}, True),
        ({"policy_base_url": "???"}, True),
    ],
)
def test_only_nemo_gym_follows_references(config: dict[str, Any], needed: bool) -> None:
    assert configuration.needs_nemo_gym(config) is needed


def test_files_become_config_paths() -> None:
    assert configuration.plain("a.yaml") == {"config_paths": ["a.yaml"]}
    assert configuration.plain([Path("a.yaml"), "b.yaml"]) == {"config_paths": ["a.yaml", "b.yaml"]}


def test_what_no_file_could_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="JSON"):
        configuration.plain({"res": object()})


@pytest.mark.parametrize(
    ("host", "address"),
    [("10.0.0.7", "http://10.0.0.7:12001"), ("::1", "http://[::1]:12001"), ("node", "http://node:12001")],
)
def test_an_address_of_ipv6_stands_in_brackets(host: str, address: str) -> None:
    assert Instance("res", "resources_servers", "x", "app.py", host, 12001).address == address
