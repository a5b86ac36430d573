"""What a checkpoint holds of a model of SB3, as SB3's own file has it: settings, weights, optimizers.

Read from the checkpoint alone, without the script. Which of it SB3 keeps, and how it is written, is known by
`adapters/sb3/zip_file.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unbroken.errors import ConfigError, CorruptObject
from unbroken.format.neutral import Left
from unbroken.format.records import Commit
from unbroken.inspection.neutral.cursor import Checkpoint, Cursor
from unbroken.inspection.neutral.networks import POLICY
from unbroken.repo.repository import Repository
from unbroken.report.arrays import NamedArray
from unbroken.state.nodes import Coded, Dict, List, Tuple
from unbroken.state.parts import split_name, view
from unbroken.state.snapshot import Snapshot

if TYPE_CHECKING:
    from unbroken.adapters.sb3.zip_file import Model, Replaced

_UNREAD = frozenset({"rng_states", "rollout_buffer", "replay_buffer", "callbacks"})
"""Components that hold nothing that SB3's file has."""
_OPTIMIZERS = ("policy.optimizer", "actor.optimizer")


@dataclass(frozen=True, slots=True)
class Contents:
    """All that goes into the file."""

    model: Model
    states: dict[str, Any]
    variables: dict[str, Any]
    left: tuple[Left, ...]

    def write(self, path: Path) -> None:
        """Write the file."""
        from unbroken.adapters.sb3.zip_file import write

        write(path, self.model, self.states, self.variables)


def contents_of(repository: Repository, commit: Commit) -> Contents:
    """Read what the file of a checkpoint holds.

    Raises:
        ConfigError: the checkpoint holds no model of SB3 or not all that SB3 keeps, or a package is missing.
        CorruptObject: it is damaged.
    """
    from unbroken.adapters.sb3.zip_file import place_of_model, read_model

    names = {entry.component for entry in repository.manifest(commit).documents.values()}
    wanted = sorted(
        name for name in names if split_name(name)[1] in (None, 0) and split_name(name)[0] not in _UNREAD
    )
    snapshot = view(repository.load(commit, wanted), 0)
    place = place_of_model(snapshot)
    checkpoint = Checkpoint(snapshot)
    at = checkpoint.root(place)
    model = read_model(snapshot, place, _last(at))
    states: dict[str, Any] = {
        name: _weights(checkpoint, at) if name == "policy" else _optimizer(_follow(at, name), name)
        for name in model.states
    }
    variables = {name: _variable(_follow(at, name), name) for name in model.variables}
    return Contents(model, states, variables, tuple(_left(model, snapshot, names)))


def _follow(at: Cursor, path: str) -> Cursor:
    return at.attr(*path.split("."))


def _items(at: Cursor) -> Iterator[Cursor]:
    return (one for _, one in at.items())


def _last(at: Cursor) -> Mapping[str, float]:
    """Return the newest value of each schedule: of the learning rate the optimizer's, of others what was logged."""
    found: dict[str, float] = {}
    for name, key in (
        ("learning_rate", "train/learning_rate"),
        ("clip_range", "train/clip_range"),
        ("clip_range_vf", "train/clip_range_vf"),
        ("delta_std_schedule", "train/delta_std"),
    ):
        logged = at.attr("_logger", "name_to_value", key).number()
        if logged is not None:
            found[name] = logged
    for name in _OPTIMIZERS:
        for group in _items(_follow(at, f"{name}.param_groups")):
            rate = group.attr("lr").number()
            if rate is not None:
                found["learning_rate"] = rate
    return found


def _weights(checkpoint: Checkpoint, at: Cursor) -> dict[str, Any]:
    policy = at.attr("policy")
    for place, tensors in checkpoint.arrays.modules(POLICY).items():
        if checkpoint.root(place).value is policy.value:
            return OrderedDict((name, _tensor(array)) for name, array in tensors.items())
    raise ConfigError(
        "The weights of the policy are not in the checkpoint as a whole.",
        hint="Write what other programs can use of it, with --to neutral.",
    )


def _tensor(array: NamedArray) -> Any:
    from unbroken.capture.torch_file import tensor_of

    return tensor_of(array.dtype, array.values)


def _variable(at: Cursor, name: str) -> Any:
    array = at.array()
    if array is None:
        raise _missing(name)
    tensor = _tensor(array)
    fields = (at.value.v.v or {}) if isinstance(at.value, Coded) and isinstance(at.value.v, Dict) else {}
    return tensor.requires_grad_() if fields.get("grad") else tensor


def _missing(name: str) -> ConfigError:
    return ConfigError(
        f"The checkpoint holds no {name} of the model, without which SB3 cannot load it.",
        hint="Write what other programs can use of it, with --to neutral.",
    )


def _optimizer(at: Cursor, name: str) -> dict[str, Any]:
    """Return the `state_dict` of an optimizer: its parameters by number, in the order of its groups."""
    if not at.attr("param_groups"):
        raise _missing(name)
    numbers: dict[int, int] = {}
    groups: list[dict[str, Any]] = []
    for group in _items(at.attr("param_groups")):
        fields = {key: _value(one) for key, one in group.items() if key != "params"}
        parameters = [numbers.setdefault(id(one.value), len(numbers)) for one in _items(group.attr("params"))]
        groups.append({**fields, "params": parameters})
    state: dict[int, Any] = {}
    held = at.attr("state").value
    for key, value in (held.kv or []) if isinstance(held, Dict) else []:
        number = numbers.get(id(at.arrays.resolve(key, at.component)[0]))
        if number is None:
            raise CorruptObject(
                "An optimizer of the checkpoint has moments of a parameter that it does not have."
            )
        moments = Cursor(at.arrays, *at.arrays.resolve(value, at.component))
        state[number] = {name: _value(one) for name, one in moments.items()}
    return {"state": state, "param_groups": groups}


def _value(at: Cursor) -> Any:
    """Return a setting or a moment of an optimizer."""
    array = at.array()
    if array is not None:
        return _tensor(array)
    if isinstance(at.value, (Tuple, List)):
        values = list(map(_value, _items(at)))
        return tuple(values) if isinstance(at.value, Tuple) else values
    if isinstance(at.value, Dict):
        return {key: _value(one) for key, one in at.items()}
    return at.plain()


def _left(model: Model, snapshot: Snapshot, names: set[str]) -> list[Left]:
    found = [
        Left(
            what=name,
            why=f"it is a function of the script, {one.function}; {_stands(name, one)}",
        )
        for name, one in model.replaced.items()
        if name != "lr_schedule"
    ]
    found += [Left(what=name, why=why) for name, why in model.unknown.items()]
    found.append(Left(what=", ".join(model.absent), why="they belong to each start"))
    has = {split_name(name)[0] for name in names}
    if "replay_buffer" in has:
        found.append(Left(what="the replay buffer", why="SB3 leaves it out too; --to neutral writes it"))
    if _normalizes(snapshot):
        found.append(
            Left(what="statistics of VecNormalize", why="SB3 leaves them out too; --to neutral writes them")
        )
    found.append(
        Left(
            what="environments, the rollout in progress, random generators, callbacks",
            why="SB3 leaves them out too; the run itself goes on with them",
        )
    )
    return found


def _stands(name: str, one: Replaced) -> str:
    """Return what stands for a function, and what it gave last if that is something else.

    Zero is what a schedule that falls to its end leaves: SB3 loads it, and then learns nothing without a word.
    """
    told = f"{one.constant} stands for it"
    if one.last != one.constant:
        told += f", and what it gave last is {one.last}"
    if one.constant == 0.0:
        told += "; to train on, give it"
        if name == "learning_rate":
            told += ": with 0 nothing is learnt"
    return told


def _normalizes(snapshot: Snapshot) -> bool:
    return any(one.cls.endswith(":VecNormalize") for one in Checkpoint(snapshot).objects("env_states"))
