"""Episodes of a replay buffer: what each has recorded is written as one row of bytes.

A buffer of 50,000 steps holds thousands of episodes, and each of them five buffers of its own, a dict for every
step and copies of both spaces. Met one by one they would hold up the training for seconds at each save. The
spaces are copies of each other: the first that is met is written, and the others refer to it.

Not promised: speed for episodes that are still lists, for observations that are no arrays, and for infos that
say something. They are walked, and no less exact.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from unbroken.errors import CorruptObject
from unbroken.state import dtypes
from unbroken.state.lookup import slots_of
from unbroken.state.nodes import Value, class_name
from unbroken.state.policy import Phase

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

EPISODE = "ray.rllib.env.single_agent_episode:SingleAgentEpisode"
_LOOKBACK = "ray.rllib.env.utils.infinite_lookback_buffer"
_BUFFER = f"{_LOOKBACK}:InfiniteLookbackBuffer"
_BUFFERS = ("observations", "actions", "rewards")
_OUTPUTS = "extra_model_outputs"
_SPACES = ("_observation_space", "_action_space")
_SIMPLE_SPACES = frozenset({
    "gymnasium.spaces.box:Box", "gymnasium.spaces.discrete:Discrete",
    "gymnasium.spaces.multi_binary:MultiBinary", "gymnasium.spaces.multi_discrete:MultiDiscrete",
})  # fmt: skip
_HELD = {"data", "lookback", "finalized", "_space", "_space_struct"}

LARGE = 1 << 16
"""Bytes of an array that is better written by itself: it is copied once less, and nothing is gained by a row."""

_RECENT = 4
"""With how many spaces that were met before a space is compared."""


class Recorded(msgspec.Struct, array_like=True, frozen=True):
    """One buffer of an episode: the attribute, the key if that is a dict, and what it holds. `space` is the number of
    its space, -1 for none."""

    name: str
    key: str
    dtype: str
    shape: tuple[int, ...]
    lookback: int
    space: int


class Layout(msgspec.Struct, array_like=True, frozen=True):
    """What stands in the row of an episode. `infos` is the number of its infos, all of them empty, or -1 if they are
    written elsewhere; `last`: the newest of them is also the one last added."""

    buffers: tuple[Recorded, ...]
    outputs: bool
    spaces: dict[str, int]
    infos: int
    last: bool


@dataclass(frozen=True, slots=True)
class _Row:
    """What was found out about an episode. `recorded`: attribute, key, buffer and its array."""

    episode: Any
    recorded: list[tuple[str, str, Any, Any]]
    outputs: int
    walked: frozenset[str]
    layout: str
    spaces: list[Any]
    infos: int

    def stands(self) -> bool:
        """Whether nobody has given the episode other arrays or infos since."""
        episode = self.episode
        outputs, infos = episode.extra_model_outputs, episode.infos.data
        return (
            all(
                buffer.data is data and (outputs.get(key) if key else getattr(episode, name)) is buffer
                for name, key, buffer, data in self.recorded
            )
            and (self.outputs == len(outputs))
            and (self.infos < 0 or (len(infos) == self.infos and not any(infos)))
        )


class EpisodeCaptor:
    """Captor of an episode of one agent: what was recorded in arrays, as one row.

    Only of one in a replay buffer: what is added there is a copy, down to the spaces. An env runner's episodes share
    them with its environment.
    """

    def __init__(self) -> None:
        self._spaces: list[Any] = []
        """Those that stand for their copies, newest last."""
        self._rows: WeakKeyDictionary[Any, dict[int, _Row]] = WeakKeyDictionary()
        """Buffer -> what was found out about its finished episodes, by their identity."""
        self._known: dict[int, _Row] = {}
        self._held: dict[int, Any] = {}
        """The same of the buffer that is being walked, and all its episodes."""

    def hold(self, buffer: Any) -> None:
        """Make rows of the episodes of this buffer, until `release`."""
        copies = type(buffer).add.__module__.startswith("ray.rllib.")
        self._held = {id(episode): episode for episode in buffer.episodes} if copies else {}
        known = self._rows.get(buffer, {})
        self._known = self._rows[buffer] = {key: known[key] for key in known.keys() & self._held.keys()}

    def release(self) -> None:
        """Make rows of no more episodes."""
        self._held, self._known = {}, {}

    def attributes(self, obj: Any) -> frozenset[str] | None:
        row = self._row(obj)
        return None if row is None else row.walked

    def capture(self, obj: Any, walk: Walk) -> dict[str, Value]:
        row = self._row(obj)
        if row is None:
            return {}
        numbers = b"".join(data.tobytes() for _, _, _, data in row.recorded) if walk.contents else b""
        found: dict[str, Value] = {"layout": row.layout, "numbers": walk.child("<numbers>", numbers)}
        for i, space in enumerate(row.spaces):
            found[f"space {i}"] = walk.child(f"<space {i}>", space)
        return found

    def plan(self, extra: dict[str, Value], obj: Any, graft: Graft) -> None:
        layout = _layout(extra.get("layout"))
        numbers = graft.value("<numbers>", extra.get("numbers"))
        spaces = [
            graft.value(f"<space {i}>", extra[f"space {i}"])
            for i in range(len(extra))
            if f"space {i}" in extra
        ]
        known = [*layout.spaces.values(), *(b.space for b in layout.buffers)]
        size = sum(dtypes.parse(b.dtype).itemsize * math.prod(b.shape) for b in layout.buffers)
        if (
            not isinstance(numbers, bytes)
            or len(numbers) != size
            or any(not -1 <= i < len(spaces) for i in known)
            or any(length < 0 for b in layout.buffers for length in b.shape)
            or any(b.name not in (_OUTPUTS if b.key else _BUFFERS) for b in layout.buffers)
            or any(name not in _SPACES for name in layout.spaces)
        ):
            graft.error("the row of an episode is not what its layout says.")
            return
        # After the generators of the spaces, which are copied with them.
        graft.write(_fill, obj, layout, numbers, spaces, phase=Phase.GENERATORS)

    def _row(self, episode: Any) -> _Row | None:
        """Return what goes into the row of an episode, None if there is none."""
        if id(episode) not in self._held:
            return None
        row = self._known.get(id(episode))
        if row is None or row.episode is not episode or not row.stands():
            row = self._make(episode)
            if row is not None and episode.is_done:  # RLlib adds nothing to it, and changes nothing
                self._known[id(episode)] = row
        return row

    def _make(self, episode: Any) -> _Row | None:
        found: list[tuple[str, str, Any]] = [
            (name, "", getattr(episode, name)) for name in _BUFFERS if _fits(getattr(episode, name, None))
        ]
        if not found:
            return None
        outputs = _outputs_fit(episode)
        if outputs:
            found += [(_OUTPUTS, key, buffer) for key, buffer in episode.extra_model_outputs.items()]
        spaces: list[Any] = []
        buffers = []
        for name, key, buffer in found:
            data, number = buffer.data, self._number(buffer._space, spaces)
            buffers.append(Recorded(name, key, dtypes.name(data.dtype), data.shape, buffer.lookback, number))
        of_its_own = [name for name in _SPACES if _is_simple(getattr(episode, name, None))]
        infos, last = _empty_infos(episode)
        layout = Layout(
            buffers=tuple(buffers),
            outputs=outputs,
            spaces={name: self._number(getattr(episode, name), spaces) for name in of_its_own},
            infos=infos,
            last=last,
        )
        names = [*(name for name, _, _ in found), *of_its_own, *([_OUTPUTS] if outputs else [])]
        names += [*(["infos"] if infos >= 0 else []), *(["_last_added_infos"] if last else [])]
        return _Row(
            episode=episode,
            recorded=[(name, key, buffer, buffer.data) for name, key, buffer in found],
            walked=names_without(episode, names),
            layout=msgspec.json.encode(layout).decode(),
            spaces=spaces,
            infos=infos,
            outputs=len(episode.extra_model_outputs),
        )

    def _number(self, space: Any, spaces: list[Any]) -> int:
        """Return the number, among `spaces` of this episode, of what stands for a space of its own."""
        if space is None:
            return -1
        same = next((other for other in reversed(self._spaces) if _alike(other, space)), None)
        if same is None:
            self._spaces = [*self._spaces[1 - _RECENT :], same := space]
        for i, other in enumerate(spaces):
            if other is same:
                return i
        spaces.append(same)
        return len(spaces) - 1


def names_without(obj: object, without: Collection[str]) -> frozenset[str]:
    """Return the names of all attributes and slots that an object may have, but for `without`."""
    return frozenset({*getattr(obj, "__dict__", {}), *slots_of(type(obj))}) - frozenset(without)


def _outputs_fit(episode: Any) -> bool:
    outputs = getattr(episode, _OUTPUTS, None)
    return type(outputs) is dict and all(type(k) is str and k and _fits(b) for k, b in outputs.items())


def _fits(buffer: Any) -> bool:
    """Whether a buffer is nothing but an array of its own and a space that can be copied."""
    if class_name(type(buffer)) != _BUFFER or vars(buffer).keys() != _HELD or buffer.finalized is not True:
        return False
    data, space = buffer.data, buffer._space
    return (
        type(data) is np.ndarray
        and data.base is None
        and data.flags.c_contiguous
        and not data.dtype.hasobject
        and data.nbytes <= LARGE
        and type(buffer.lookback) is int
        and space is buffer._space_struct
        and (space is None or _is_simple(space))
    )


def _is_simple(space: Any) -> bool:
    return class_name(type(space)) in _SIMPLE_SPACES


def _empty_infos(episode: Any) -> tuple[int, bool]:
    """Return how many infos there are, -1 if they are no empty dicts; and whether the newest was added last."""
    infos: Any = getattr(episode, "infos", None)
    added: Any = getattr(episode, "_last_added_infos", None)
    if class_name(type(infos)) != _BUFFER or vars(infos).keys() != _HELD:
        return -1, False
    data = infos.data
    if infos.finalized or infos.lookback != 0 or infos._space is not None or infos._space_struct is not None:
        return -1, False
    if type(data) is not list or any(data) or not set(map(type, data)) <= {dict}:
        return -1, False
    each = set(map(id, data))
    last = bool(data) and data[-1] is added
    return (len(data), last) if len(each) == len(data) and (last or id(added) not in each) else (-1, False)


def _alike(one: Any, other: Any) -> bool:
    """Whether two spaces, or what they hold, are copies of each other. False for what is not known."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, (np.ndarray, np.generic)):
        return (
            bool(one.dtype == other.dtype) and one.shape == other.shape and one.tobytes() == other.tobytes()
        )
    if isinstance(one, dict):
        return bool(one.keys() == other.keys()) and all(
            _alike(value, other[key]) for key, value in one.items()
        )
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float):
        return repr(one) == repr(other)  # -0.0 is not 0.0
    if isinstance(one, (bool, int, str, np.dtype)):
        return bool(one == other)
    if isinstance(one, np.random.Generator):
        left, right = one.bit_generator, other.bit_generator
        return type(left) is type(right) and _alike(left.state, right.state)
    return _is_simple(one) and _alike(vars(one), vars(other))


def _layout(text: Value) -> Layout:
    try:
        return msgspec.json.decode(text if isinstance(text, str) else "", type=Layout)
    except msgspec.DecodeError as error:
        raise CorruptObject("The layout of an episode in a replay buffer cannot be read.") from error


def _fill(episode: Any, layout: Layout, numbers: bytes, spaces: Iterable[Any]) -> None:
    copies = [copy.deepcopy(space) for space in spaces]  # in RLlib each episode has its own
    at = 0
    if layout.outputs:
        object.__setattr__(episode, _OUTPUTS, {})
    for recorded in layout.buffers:
        dtype, count = dtypes.parse(recorded.dtype), math.prod(recorded.shape)
        data = (
            np.frombuffer(numbers, dtype, count, at).reshape(recorded.shape).copy()
            if count
            else np.empty(recorded.shape, dtype)
        )
        at += data.nbytes
        space = copies[recorded.space] if recorded.space >= 0 else None
        buffer = _buffer(data, recorded.lookback, space)
        if recorded.key:
            episode.extra_model_outputs[recorded.key] = buffer
        else:
            object.__setattr__(episode, recorded.name, buffer)
    for name, number in layout.spaces.items():
        object.__setattr__(episode, name, copies[number])
    if layout.infos >= 0:
        infos: list[dict[str, Any]] = [{} for _ in range(layout.infos)]
        object.__setattr__(episode, "infos", _buffer(infos, 0, None))
        if layout.last and infos:
            object.__setattr__(episode, "_last_added_infos", infos[-1])


def _buffer(data: Any, lookback: int, space: Any) -> Any:
    buffer = object.__new__(sys.modules[_LOOKBACK].InfiniteLookbackBuffer)
    vars(buffer).update(
        data=data, lookback=lookback, finalized=not isinstance(data, list), _space=space, _space_struct=space
    )
    return buffer


rows = EpisodeCaptor()


def episodes_rule(obj: object) -> EpisodeCaptor | None:
    """Return the captor of an episode of one agent, None for anything else."""
    return rows if class_name(type(obj)) == EPISODE else None
