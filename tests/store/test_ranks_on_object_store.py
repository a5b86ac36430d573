"""Several ranks on an object store: the words between them are conditional requests."""

from __future__ import annotations

import pytest

from tests.repo.parties import Parties, assert_each_whole_and_of_one_step
from tests.repo.states import assert_swept
from tests.store.servers import Server
from unbroken.repo.repository import Repository
from unbroken.repo.roots import root_of


def test_two_ranks_save_go_on_and_tidy_up(
    seaweedfs: Server, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name, value in seaweedfs.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("UNBROKEN_STATE_DIR", str(tmp_path_factory.mktemp("state")))
    place = seaweedfs.place()
    for start in range(2):
        # Each rank has a client of its own, as it would on a node of its own.
        parties = Parties(root_of(place).store("job"), root_of(place).store("job"), seed=start + 1)
        assert parties.begin() == [None, None]
        for step in range(3):
            assert parties.save(10 * start + step) == [None, None]
        assert parties.writer is not None
        parties.writer.close()
    store = root_of(place).store("job")
    assert assert_each_whole_and_of_one_step(store) == [12, 11]
    assert_swept(Repository.over(store, "job"))
