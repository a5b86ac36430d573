from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.errors import ConfigError
from unbroken.format import layout
from unbroken.repo import names
from unbroken.types import Epoch, Step

tokens = st.text("0123456789abcdef", min_size=12, max_size=12)
epochs = st.integers(1, 10**10 - 1).map(Epoch)


@given(tokens, epochs, st.integers(0, 10**18 - 1))
def test_objects_of_a_checkpoint_say_whose_they_are(token: str, epoch: Epoch, step: int) -> None:
    write = names.write_id(token, epoch)
    directory = layout.checkpoint(Step(step), write)
    key = f"{directory}/{layout.document('policy_weights', 'json')}"
    assert names.parse_step_object(key) == names.StepObject(
        directory, Step(step), write, "policy_weights.json"
    )
    assert names.epoch_of(write) == epoch
    assert names.epoch_of(layout.pack_name(layout.pack(write)) or "") == epoch


@given(epochs)
def test_start_records_are_told_from_claims(epoch: Epoch) -> None:
    assert names.epoch_start_number(layout.epoch_start(epoch)) == epoch
    assert names.epoch_start_number(layout.epoch(epoch)) is None
    assert names.epoch_start_number(f"epochs/{epoch:010d}.exit.json") is None


@pytest.mark.parametrize(
    "key",
    [
        "steps/notes.txt",
        "steps/step_1-3f9c2e01ab44e7/meta.json",
        "steps/step_000000000001-3f9c2e01ab44e7/deep/meta.json",
        "steps/step_000000000001-3f9c2e01ab44e0/meta.json",
        "steps/step_000000000001-mine/meta.json",
    ],
)
def test_foreign_objects_are_nobodys(key: str) -> None:
    assert names.parse_step_object(key) is None


@pytest.mark.parametrize(
    "name", ["", "e1", "3f9c2e01ab44", "3f9c2e01ab44e", "3f9c2e01ab44e07", "../3f9c2e01ab44e1"]
)
def test_foreign_write_ids_have_no_epoch(name: str) -> None:
    assert names.epoch_of(name) is None


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a\\b", "-x", ".hidden", "a\n", "ä", "x" * 129, " x", "x ", "a@1"]
)
def test_unusable_job_names_are_refused(name: str) -> None:
    assert not names.is_job(name)
    with pytest.raises(ConfigError, match="name of a run"):
        names.check_job(name)


def test_usable_job_names_are_returned() -> None:
    assert names.check_job("ppo-CartPole-v1.seed_3") == "ppo-CartPole-v1.seed_3"


@pytest.mark.parametrize("token", ["", "xyz", "3F9C2E01AB44", "3f9c2e01ab4"])
def test_a_write_id_needs_a_token(token: str) -> None:
    with pytest.raises(ConfigError, match="write id"):
        names.write_id(token, Epoch(1))


@pytest.mark.parametrize("name", ["rl_model", "my model", "ppo lr=0.1,seed=3", "_x", "v1.2+fix", "x" * 128])
def test_names_that_people_give_their_runs_are_taken(name: str) -> None:
    assert names.check_job(name) == name
