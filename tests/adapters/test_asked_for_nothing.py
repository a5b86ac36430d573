"""What is tracked is not asked for attributes that it may not have: its `__getattr__` may do anything."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unbroken.adapters.loop import Run
from unbroken.capture.untracked import UntrackedWarning

asked: list[str] = []


class Open(dict[str, Any]):
    """Its entries are its attributes, and there are no others."""

    __getattr__ = dict.__getitem__


class Growing(dict[str, Any]):
    """Makes an entry for each name that it is asked for."""

    def __getattr__(self, name: str) -> Any:
        return self.setdefault(name, Growing())


class Remote:
    """Looks elsewhere for what it has not."""

    def __init__(self) -> None:
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        asked.append(name)
        raise AttributeError(name)


class Slotted:
    """Fills a slot when it is asked for it."""

    __slots__ = ("count", "later")

    def __init__(self) -> None:
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        asked.append(name)
        raise AttributeError(name)


class Net(torch.nn.Linear):
    def __getattr__(self, name: str) -> Any:
        asked.append(name)
        return super().__getattr__(name)


class Drawing(Mapping[str, float]):
    """Draws what it gives out."""

    def __getitem__(self, key: str) -> float:
        return random.random()

    def __iter__(self) -> Iterator[str]:
        return iter("abc")

    def __len__(self) -> int:
        return 3


def trained(root: Path, **objects: object) -> None:
    run = Run(root, every=1, quiet=True)
    run.track(**objects)
    for _ in run.steps(2):
        pass


@pytest.mark.parametrize("kind", [Open, Growing])
def test_a_dict_whose_entries_are_its_attributes_is_tracked_as_it_is(kind: type[Any], tmp_path: Path) -> None:
    for held in (kind(a=1), kind(a=1)):
        run = Run(tmp_path, every=1, quiet=True)
        run.track(settings=held)
        for _ in run.steps(2):
            held["a"] += 1
        assert dict(held) == {"a": 3}


@pytest.mark.filterwarnings(
    "ignore:Not in the checkpoint. remote. changes asked"
)  # what the test listens with
@pytest.mark.parametrize("kind", [Remote, Slotted])
def test_an_object_is_asked_once_whether_it_tells_its_state_and_never_at_a_save(
    kind: type[Any], tmp_path: Path
) -> None:
    asked.clear()
    trained(tmp_path, remote=kind())
    assert sorted(asked) == ["capture", "state_dict"]


def test_neither_a_network_nor_a_mapping_is_asked_when_a_loop_begins(tmp_path: Path) -> None:
    net, drawing, left_out = Net(2, 2), Drawing(), np.zeros(2)
    generator = random.getstate()
    asked.clear()
    run = Run(tmp_path, every=1, quiet=True)
    run.track(holder={"drawing": drawing})
    with pytest.warns(UntrackedWarning, match="left_out, net"):
        next(run.steps(2))
    assert asked == []
    assert random.getstate() == generator
    assert not left_out.any() and net is not None
    run.close()
