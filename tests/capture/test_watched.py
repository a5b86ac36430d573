"""The environments of a training: each is looked at once, whatever it is called."""

from __future__ import annotations

import gymnasium
import pytest

from unbroken.capture.watched import WatchedEnvironments, is_environment
from unbroken.types import Fidelity


def test_nothing_is_promised_where_there_is_no_environment() -> None:
    assert WatchedEnvironments().watch({"buffer": [], "net": object()}) == {}
    assert not is_environment(gymnasium)


def test_one_environment_under_two_names_is_watched_once() -> None:
    env = gymnasium.make("CartPole-v1")
    watched = WatchedEnvironments()
    (promise,) = watched.watch({"module.env": env, "dataset.env": env}).values()
    assert promise.fidelity is Fidelity.EXACT
    assert len(watched._attachments) == 1
    watched.watch({"again": env})
    assert len(watched._attachments) == 1


def test_what_was_put_in_place_is_gone_afterwards() -> None:
    pytest.importorskip("Box2D")
    env = gymnasium.make("LunarLander-v3")
    before = set(vars(env.unwrapped))
    watched = WatchedEnvironments()
    watched.watch({"env": env})
    assert set(vars(env.unwrapped)) != before
    watched.release()
    assert set(vars(env.unwrapped)) == before
