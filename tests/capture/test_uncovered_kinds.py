"""No class of a person's own is named for what the library behind it does; what its own code does is found behind
every decorator."""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import enum
import functools
import logging
import sys
import threading
import types
import typing
from collections.abc import Callable, Generator
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest
import torch
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper

from unbroken.capture.source import policy_of_loaded
from unbroken.capture.uncovered import functions_of, uncovered
from unbroken.state import walk

SEEN: list[int] = []


def remember(value: int) -> None:
    SEEN.append(value)


def found(value: object) -> list[str]:
    return [note.detail for note in uncovered(walk.walk({"mine": value}, policy_of_loaded()))]


@dataclasses.dataclass
class Plain:
    x: int = 0
    items: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Frozen:
    x: int = 0


@dataclasses.dataclass(unsafe_hash=True)
class Initialized(Plain):
    start: dataclasses.InitVar[int] = 3

    def __post_init__(self, start: int) -> None:
        self.x = start


class Named(typing.NamedTuple):
    x: int = 0
    y: float = 1.0


made: Any = collections.namedtuple  # noqa: PYI024 - as people write it
Old = made("Old", "x y", defaults=(0, 0))


class Colour(enum.Enum):
    RED = enum.auto()


class Bits(enum.IntFlag):
    ONE = enum.auto()
    TWO = enum.auto()


class Abstract(abc.ABC):
    @abc.abstractmethod
    def act(self) -> int: ...


class Concrete(Abstract):
    def act(self) -> int:
        return 1


T = typing.TypeVar("T")


class Box(typing.Generic[T]):
    def __init__(self, content: T) -> None:
        self.content = content


@typing.runtime_checkable
class Acts(typing.Protocol):
    def act(self) -> int: ...


class Follows(Acts):
    def act(self) -> int:
        return 2


class Options(typing.TypedDict):
    x: int


class Record(msgspec.Struct):
    x: int = 0


def through(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def around(*arguments: Any) -> Any:
        return function(*arguments)

    return around


@functools.total_ordering
class Decorated:
    """Has nothing but what belongs to it, behind every decorator of the standard library."""

    def __init__(self) -> None:
        self.mine: list[int] = []
        self.lock_of = contextlib.nullcontext()

    def __lt__(self, other: Any) -> bool:
        return len(self.mine) < len(other.mine)

    @contextlib.contextmanager
    def opened(self) -> Generator[None]:
        self.mine.append(1)
        yield

    @functools.lru_cache  # noqa: B019 - as people write it
    def level(self) -> int:
        return len(self.mine)

    @functools.cached_property
    def kept(self) -> int:
        return len(self.mine)

    @functools.singledispatchmethod
    def told(self, value: Any) -> None:
        self.mine.append(value)

    @told.register
    def _(self, value: str) -> None:
        self.mine.append(len(value))

    one: Any = functools.partialmethod(told, 1)

    @through
    def wrapped(self) -> None:
        self.mine.append(1)

    @torch.no_grad()
    def quiet(self) -> None:
        self.mine.append(1)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.layer.register_forward_hook(lambda *_: None)
        return torch.relu(self.layer(x))


class Rows(torch.utils.data.Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class Everything(gymnasium.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        return self.env.step(action)


class Lifted(VecEnvWrapper):
    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        return self.venv.step_wait()


class Watches(BaseCallback):
    def _on_step(self) -> bool:
        self.logger.record("x", 1)
        return True


class Buffer(ReplayBuffer):
    pass


class Noise(NormalActionNoise):
    pass


class Policy(ActorCriticPolicy):
    pass


class Formats(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return super().format(record)


class Waits(threading.Thread):
    def run(self) -> None:
        return None


class Books(collections.UserDict[str, int]):
    pass


class Failure(Exception):
    pass


def lifted() -> DummyVecEnv:
    return DummyVecEnv([lambda: gymnasium.make("CartPole-v1")])


def cell() -> Any:
    space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    return Policy(space, space, lambda _: 0.1)


KINDS: dict[str, Callable[[], Any]] = {
    "dataclass": Plain,
    "dataclass, frozen": Frozen,
    "dataclass, derived": Initialized,
    "NamedTuple": Named,
    "namedtuple": Old,
    "Enum": lambda: Colour.RED,
    "IntFlag": lambda: Bits.ONE | Bits.TWO,
    "ABC": Concrete,
    "Generic": lambda: Box[int](3),
    "Protocol": Follows,
    "TypedDict": lambda: Options(x=1),
    "Struct": Record,
    "make_dataclass": dataclasses.make_dataclass("Made", [("x", int, 0)]),
    "decorators": Decorated,
    "Module": Net,
    "Dataset": Rows,
    "Wrapper": lambda: Everything(gymnasium.make("CartPole-v1")),
    "VecEnvWrapper": lambda: Lifted(lifted()),
    "BaseCallback": Watches,
    "ReplayBuffer": lambda: Buffer(4, gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)),
    "ActionNoise": lambda: Noise(np.zeros(1), np.ones(1)),
    "ActorCriticPolicy": cell,
    "Formatter": Formats,
    "Thread": Waits,
    "UserDict": Books,
    "Exception": Failure,
    "SimpleNamespace": lambda: types.SimpleNamespace(x=1),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_class_is_not_named_for_what_its_library_does(name: str) -> None:
    assert found({"value": KINDS[name]()}) == []


@pytest.mark.parametrize(
    "library", ["torch", "gymnasium", "stable_baselines3", "numpy", "msgspec", "the standard library"]
)
def test_a_class_that_adds_nothing_to_one_of_a_library_has_no_code_to_look_at(library: str) -> None:
    """All classes of all its modules that are imported."""
    tops = sys.stdlib_module_names if library == "the standard library" else {library}
    derived = 0
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in tops:
            continue
        for cls in [value for value in list(vars(module).values()) if issubclass(type(value), type)]:
            try:
                mine = types.new_class("Mine", (cls,), {}, lambda space: space.update(__module__=__name__))
            except Exception:  # noqa: BLE001 - nothing can be derived from it
                continue
            derived += 1
            assert list(functions_of(mine)) == [], cls
    assert derived > 5


class Cached:
    @functools.lru_cache  # noqa: B019 - as people write it
    def act(self) -> None:
        SEEN.append(1)


class CachedProperty:
    @functools.cached_property
    def act(self) -> None:
        SEEN.append(1)


class PartialMethod:
    def _act(self, value: int) -> None:
        SEEN.append(value)

    act = functools.partialmethod(_act, 1)


class Partial:
    act = functools.partial(remember, 1)


class Context:
    @contextlib.contextmanager
    def act(self) -> Generator[None]:
        SEEN.append(1)
        yield


class Quiet:
    @torch.no_grad()
    def act(self) -> None:
        SEEN.append(1)


class Dispatched:
    @functools.singledispatchmethod
    def act(self, value: Any) -> None:
        SEEN.append(value)


class Wrapped:
    @through
    def act(self) -> None:
        SEEN.append(1)


def nameless(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: (function(*arguments), None)


class Nameless:
    @nameless
    def act(self) -> None:
        SEEN.append(1)


@dataclasses.dataclass
class InADataclass:
    x: int = 0

    def act(self) -> None:
        SEEN.append(self.x)


@pytest.mark.parametrize(
    "cls",
    [
        Cached, CachedProperty, PartialMethod, Partial, Context, Quiet, Dispatched, Wrapped, Nameless, InADataclass,
    ],
)  # fmt: skip
def test_what_the_programs_own_code_changes_is_found_behind_a_decorator(cls: type) -> None:
    assert found(cls()) == [f"changes SEEN, a global of {__name__}"]


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    calls = 0

    @functools.wraps(function)
    def around(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return function(*arguments)

    return around


class Counted:
    @counted
    def act(self) -> None:
        pass


def test_a_variable_of_a_decorator_is_said_to_be_around_the_function_that_it_stands_for() -> None:
    assert found(Counted()) == ["assigns calls, a variable of a function around Counted.act"]
