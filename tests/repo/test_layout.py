from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.errors import ConfigError
from unbroken.repo import layout
from unbroken.types import Epoch, Sequence, Step

tokens = st.text("0123456789abcdef", min_size=8, max_size=32)
numbers = st.integers(1, 10**18 - 1)


@given(tokens, numbers, numbers)
def test_names_of_step_objects_are_read_back(token: str, epoch: int, step: int) -> None:
    write = layout.write_id(token, Epoch(epoch))
    directory = layout.step_directory(Step(step), write)
    key = layout.document(directory, "policy_weights", "json")
    parsed = layout.parse_step(key)
    assert parsed == layout.StepObject(directory, Step(step), write, "policy_weights.json")
    assert layout.is_step_directory(directory)
    assert layout.epoch_of(write) == epoch


@given(tokens, numbers)
def test_names_of_packs_are_read_back(token: str, epoch: int) -> None:
    write = layout.write_id(token, Epoch(epoch))
    assert layout.parse_pack(layout.pack(write)) == layout.PackObject(write, "pack")
    assert layout.parse_pack(layout.index(write)) == layout.PackObject(write, "idx")


@given(numbers)
def test_numbers_are_read_back(number: int) -> None:
    assert layout.parse_commit(layout.commit(Sequence(number))) == number
    assert layout.parse_epoch(layout.epoch(Epoch(number))) == (number, False)
    assert layout.parse_epoch(layout.epoch_start(Epoch(number))) == (number, True)


@given(st.lists(numbers.filter(lambda n: n < 10**10), min_size=2))
def test_commits_sort_as_text(sequences: list[int]) -> None:
    keys = sorted(layout.commit(Sequence(number)) for number in sequences)
    assert [layout.parse_commit(key) for key in keys] == sorted(sequences)


@pytest.mark.parametrize(
    "key",
    [
        "commits/1.json",
        "commits/00000000001.json",
        "commits/0000000001.json.tmp",
        "commits/x.json",
        "commits/../0000000001.json",
    ],
)
def test_foreign_objects_are_no_commits(key: str) -> None:
    assert layout.parse_commit(key) is None


@pytest.mark.parametrize(
    "key", ["packs/ab/cd345678-e1.pack", "packs/ab345678-e1.pack", "packs/ab/ab345678-e0.pack", "packs/ab/x.pack"]
)
def test_foreign_objects_are_no_packs(key: str) -> None:
    assert layout.parse_pack(key) is None


@pytest.mark.parametrize(
    "name",
    ["../x/", "steps/../../x/", "steps/step_000000000001-12345678-e1", "steps/step_1-12345678-e1/", "/etc/", ""],
)
def test_only_step_directories_are_directories(name: str) -> None:
    assert not layout.is_step_directory(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "-x", ".hidden", "a\n", "ä", "x" * 129])
def test_unusable_job_names_are_refused(name: str) -> None:
    assert not layout.is_job(name)
    with pytest.raises(ConfigError, match="name of a run"):
        layout.check_job(name)


def test_usable_job_names_are_returned() -> None:
    assert layout.check_job("ppo-CartPole-v1.seed_3") == "ppo-CartPole-v1.seed_3"


@pytest.mark.parametrize("name", ["", "meta", "manifest", "../x", "a/b", ".x"])
def test_unusable_component_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="name of a component"):
        layout.check_component(name)


def test_a_write_id_needs_a_hexadecimal_token() -> None:
    with pytest.raises(ConfigError, match="write id"):
        layout.write_id("xyz", Epoch(1))
