"""The ground that the other tests stand on: NeMo Gym's own servers run here, and forget everything."""

from __future__ import annotations

from in_process import build
from starlette.testclient import TestClient


def test_a_server_that_starts_anew_gives_plausible_wrong_data() -> None:
    from resources_servers.example_session_state_mgmt.app import StatefulCounterResourcesServer

    _, app = build(StatefulCounterResourcesServer)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        client.post("/seed_session", json={"initial_count": 3})
        client.post("/increment_counter", json={"count": 2})
        assert client.post("/get_counter_value").json() == {"count": 5}
        cookies = dict(client.cookies)
    _, again = build(StatefulCounterResourcesServer)
    with TestClient(again, base_url="http://127.0.0.1", cookies=cookies) as client:
        answer = client.post("/get_counter_value")
        assert answer.status_code == 200
        assert answer.json() == {"count": 0}
