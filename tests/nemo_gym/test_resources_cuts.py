"""Cuts of a real server under load, and a checkpoint of it in another process's place."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.nemo_gym.serving import serving
from unbroken.adapters.nemo_gym import records
from unbroken.adapters.nemo_gym.control import Activate, Export, Exported, Prepare, Quiesce
from unbroken.adapters.nemo_gym.words import REFUSED


def test_sixteen_clients_and_twenty_cuts(tmp_path: Path) -> None:
    """H2, with a server of NeMo Gym."""
    from resources_servers.example_session_state_mgmt.app import StatefulCounterResourcesServer as Counter

    acknowledged = [0] * 16
    stop = threading.Event()
    progress = threading.Condition()
    with serving(Counter, tmp_path / "1") as server:
        server.adopt()
        cookies = [server.seeded(body={"initial_count": 0}, rollout=f"r{n}", call="1") for n in range(5)]

        def client(number: int) -> None:
            while not stop.is_set():
                headers = {
                    "x-unbroken-call": f"{number}/{acknowledged[number]}",
                    "cookie": cookies[number % 5],
                }
                answer = server.client.post("/increment_counter", json={"count": 1}, headers=headers)
                assert answer.status_code == 200
                assert REFUSED not in answer.headers
                with progress:
                    acknowledged[number] += 1
                    progress.notify_all()

        server.client.cookies.clear()
        kept: dict[str, records.SessionRecord] = {}
        last = Exported(lineage="", mark=0, complete=True)
        with ThreadPoolExecutor(16) as pool:
            clients = [pool.submit(client, number) for number in range(16)]
            try:
                for _ in range(20):
                    with progress:
                        wanted = sum(acknowledged) + 16
                        while sum(acknowledged) < wanted:
                            assert progress.wait(300)
                    server.told("quiesce", Quiesce(timeout=300))
                    last = server.told("export", Export(lineage=last.lineage, mark=last.mark))
                    kept |= {record.key: records.session(record.data) for record in last.records}
                    counted = sum(server.server.session_id_to_counter.values())
                    assert sum(acknowledged) <= counted
                    assert sum(len(record.calls) - 1 for record in kept.values()) == counted
                    server.told("release")
            finally:
                stop.set()
            for one in clients:
                one.result()
        assert sum(server.server.session_id_to_counter.values()) == sum(acknowledged)
        server.told("quiesce", Quiesce(timeout=300))
        every = server.told("export", Export())
        digests = server.digests()
    with serving(Counter, tmp_path / "2") as other:
        other.adopt()
        other.told("quiesce", Quiesce(timeout=300))
        prepared = other.told(
            "prepare", Prepare(records=every.records, shared=every.shared, media=every.media)
        )
        assert prepared.problems == ()
        assert other.server.session_id_to_counter == {}
        other.told("activate", Activate())
        other.told("release")
        assert other.digests() == digests
        assert sum(other.server.session_id_to_counter.values()) == sum(acknowledged)
