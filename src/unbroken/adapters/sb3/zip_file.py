"""SB3's own `.zip`: what `model.save()` would have written at the point at which a checkpoint was taken.

SB3 keeps the attributes of a model as pickles, and a checkpoint holds none: each is built from the checkpoint's plain
words. `zip_guard.py` knows which classes a file may name and what may stand in it; RL Zoo's one schedule is imported
where a model has it. Nothing else is looked up, and no code of the user's is imported. A schedule that is a function
stands in the script only: its last value takes its place, and it is named.

Not promised: attributes that the script has added to the model and that cannot be built. They are left out by name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from unbroken.adapters.sb3.policy import training_policy
from unbroken.adapters.sb3.zip_guard import (
    OF_THE_ZOO,
    PACKAGES,
    SCHEDULES,
    algorithm_of,
    class_of,
    load_module_of,
    misfits,
)
from unbroken.errors import ConfigError, installing
from unbroken.state import graft
from unbroken.state.nodes import (
    Class,
    Dict,
    External,
    Function,
    Link,
    Method,
    Object,
    Opaque,
    Partial,
    Ref,
    Value,
)
from unbroken.state.places import index, visit
from unbroken.state.snapshot import Snapshot

_UTILS = "stable_baselines3.common.utils"
_ROOT, _KNOWN = "<zip>", "<known>"
_ALGORITHM = {"policy", "policy_class", "num_timesteps", "observation_space"}
"""What every algorithm of SB3 holds: one of the user's own class too, which is then told by its name."""
_SAVE = "Call model.save() in the script: started again, it has the state of the newest checkpoint."
_OTHERS = "Write what other programs can use of it, with --to neutral."
_OF_A_START = ("start_time", "tensorboard_log")
"""Attributes that SB3 keeps and a checkpoint does not: they belong to each start."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """A function of the script, and what stands for it."""

    function: str
    last: float
    """What it gave last."""
    constant: float
    """What the file has: the same, but nothing below zero, with which no optimizer is built."""


@dataclass(frozen=True, slots=True)
class Model:
    """What SB3 keeps of a model, but for its tensors."""

    name: str
    """How a program calls its class: `stable_baselines3.PPO`."""
    data: dict[str, Any]
    states: tuple[str, ...]
    """Attributes whose `state_dict` is kept."""
    variables: tuple[str, ...]
    """Attributes that are kept as tensors."""
    replaced: dict[str, Replaced] = field(default_factory=dict[str, "Replaced"])
    """The schedules that are functions of the script."""
    unknown: dict[str, str] = field(default_factory=dict[str, str])
    """Attribute of the user's own -> why it is not there."""
    absent: tuple[str, ...] = _OF_A_START


def place_of_model(saved: Snapshot) -> str:
    """Return the root of a checkpoint that is a model of SB3.

    Raises:
        ConfigError: there is none, or more than one.
    """
    found = [
        root
        for component in saved.components.values()
        for root, node in component.roots.items()
        if isinstance(node, Object) and node.a.keys() >= _ALGORITHM
    ]
    if len(found) != 1:
        raise ConfigError(
            f"The checkpoint holds {'several models' if found else 'no model'} of Stable-Baselines3.",
            hint=_OTHERS,
        )
    return found[0]


def read_model(saved: Snapshot, place: str, last: Mapping[str, float]) -> Model:
    """Return what SB3 keeps of the model at `place`. `last` is the newest value of each schedule that is known.

    Raises:
        ConfigError: a package is missing; a class or a function of the script is a part of what SB3 keeps.
        CorruptObject: the document contradicts itself.
    """
    component = next(one for one in saved.components.values() if place in one.roots)
    node = component.roots[place]
    assert isinstance(node, Object)
    blank = _blank(node)
    if "ent_coef_optimizer" in node.a:  # which tensors are kept depends on whether there is one
        blank.ent_coef_optimizer = None if node.a["ent_coef_optimizer"] is None else object()
    states, variables = blank._get_torch_save_params()
    excluded = {*blank._excluded_save_params(), *(name.partition(".")[0] for name in (*states, *variables))}
    # Where a run logs is not for a checkpoint to say, and none that was captured does.
    entries = {name: value for name, value in node.a.items() if name not in {*excluded, *_OF_A_START}}
    own, replaced = _schedules(saved, entries, last)
    entries = {name: value for name, value in entries.items() if name not in own}
    found, problems = _built(saved, component.name, entries)
    needed = _names_of(type(blank))
    if problems:
        for name, detail in problems.items():
            if name in needed:
                raise ConfigError(
                    f"SB3's .zip holds {name}, and only the script has all of it: {detail}", hint=_SAVE
                )
            del entries[name]
        found, _ = _built(saved, component.name, entries)
    # What a checkpoint does not hold is as the class has it: SB3's load begins with the same.
    defaults = {name: value for name, value in vars(blank).items() if name not in excluded}
    data = {**defaults, **found, **own}
    # Before anything is written: SB3 calls what it loads.
    for name, detail in misfits(type(blank), data, defaults).items():
        if name in needed or name in defaults:
            raise ConfigError(f"The checkpoint is of no {_called(type(blank))}: {detail}", hint=_OTHERS)
        del data[name]
        problems[name] = detail
    return Model(
        _called(type(blank)),
        data,
        tuple(states),
        tuple(variables),
        replaced,
        problems,
    )


def write(path: Path, model: Model, states: Mapping[str, Any], variables: Mapping[str, Any]) -> None:
    """Write the file with these `state_dict`s and tensors.

    Raises:
        ConfigError: an attribute leads back to itself, which SB3 does not write.
    """
    from stable_baselines3.common.save_util import save_to_zip_file

    try:
        with path.open("wb") as file:  # SB3 leaves its own open where it fails
            save_to_zip_file(file, data=model.data, params=dict(states), pytorch_variables=dict(variables))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"SB3 cannot write this model: {error}.", hint=_OTHERS) from error


def _blank(node: Object) -> Any:
    """Return an algorithm of the class of the model, without policy and environment, as SB3's `load` makes it."""
    package = node.c.partition(".")[0]
    if package not in PACKAGES:
        raise ConfigError(
            f"The model is a {node.c}, a class of the script's own, which is not imported here.", hint=_SAVE
        )
    for needed in dict.fromkeys(("stable_baselines3", package)):
        try:
            import_module(needed)
        except ImportError as error:
            name = needed.replace("_", "-")
            raise ConfigError(
                f"SB3's .zip of this model needs {name}, which is not installed.", hint=installing(name)
            ) from error
    make: Any = algorithm_of(node.c)
    if make is None:
        raise ConfigError(
            f"The {package} that is installed has no algorithm {node.c[:100]}.", hint="Install a newer one."
        )
    return make(next(iter(make.policy_aliases)), None, device="cpu", _init_setup_model=False)


def _called(cls: type) -> str:
    package = cls.__module__.partition(".")[0]
    short = vars(sys.modules[package]).get(cls.__name__) is cls
    return f"{package if short else cls.__module__}.{cls.__name__}"


def _names_of(cls: type) -> frozenset[str]:
    """Return every attribute that SB3's own code of an algorithm speaks of."""
    return frozenset(
        name
        for base in cls.__mro__
        if base.__module__.partition(".")[0] in PACKAGES
        for function in vars(base).values()
        for name in getattr(getattr(function, "__code__", None), "co_names", ())
    )


def _schedules(
    saved: Snapshot, entries: Mapping[str, Value], last: Mapping[str, float]
) -> tuple[dict[str, Any], dict[str, Replaced]]:
    """Return what stands for the schedules that are functions, and which of them are the script's."""
    from stable_baselines3.common.utils import FloatSchedule

    found: dict[str, Any] = {}
    replaced: dict[str, Replaced] = {}
    known = index(saved)

    def resolved(value: Value) -> Any:
        if isinstance(value, Ref):
            return known.by_number.get(value.to)
        return known.by_place.get(value.to, ("", None))[1] if isinstance(value, Link) else value

    for name in SCHEDULES:
        inner = resolved(entries.get(name))
        while isinstance(inner, Object) and inner.c == f"{_UTILS}:FloatSchedule":
            inner = resolved(inner.a.get("value_schedule"))
        function = _of_the_script(inner)
        if function is None:
            continue
        same: Any = _of_sb3(inner)
        if same is None:
            value = last.get("learning_rate" if name == "lr_schedule" else name)
            if value is None:
                raise ConfigError(
                    f"{name} is a function of the script, {function}, and no value of it is in this checkpoint yet.",
                    hint="Take a later checkpoint, after the first update.",
                )
            same = max(value, 0.0)  # the rollout that passes the end leads below
            replaced[name] = Replaced(function, value, same)
        found[name] = same if name == "learning_rate" else FloatSchedule(same)
    return found, replaced


def _of_the_script(value: Any) -> str | None:
    """Return the name of what is called here if it is nothing that SB3 has as a class."""
    if isinstance(value, Function):
        return value.q
    if isinstance(value, Method):
        return f"the method {value.n}"
    if isinstance(value, Partial):
        return "a partial"
    if isinstance(value, (External, Opaque)) or (
        isinstance(value, Object) and value.c.partition(".")[0] not in PACKAGES
    ):
        return value.c
    return None


def _of_sb3(value: Any) -> Any:
    """Return the schedule for a function that SB3 has made from numbers, which are its closure, or RL Zoo's."""
    from stable_baselines3.common.utils import ConstantSchedule, LinearSchedule

    if isinstance(value, Object) and value.c == OF_THE_ZOO:
        initial = value.a.get("initial_value")
        module, _, name = OF_THE_ZOO.partition(":")
        try:
            return getattr(import_module(module), name)(initial) if isinstance(initial, float) else None
        except (ImportError, AttributeError):
            return None  # its last value does without
    if not isinstance(value, Function):
        return None
    numbers = {name: cell for name, cell in value.cl.items() if isinstance(cell, (int, float))}
    if value.q == f"{_UTILS}:get_linear_fn.<locals>.func" and numbers.keys() == {
        "start",
        "end",
        "end_fraction",
    }:
        return LinearSchedule(**numbers)
    if value.q == f"{_UTILS}:constant_fn.<locals>.func" and numbers.keys() == {"val"}:
        return ConstantSchedule(**numbers)
    return None


def _built(
    saved: Snapshot, component: str, entries: Mapping[str, Value]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the attributes, built from their words; or which of them cannot be, and why."""
    found, plan = _plan(saved, component, entries)
    if next(_problems(plan), None) is None:
        plan.apply()
        return found, {}
    problems: dict[str, str] = {}
    for name, value in entries.items():
        first = next(_problems(_plan(saved, component, {name: value})[1]), None)
        if first is not None:
            problems[name] = first
    return {}, problems


def _plan(
    saved: Snapshot, component: str, entries: Mapping[str, Value]
) -> tuple[dict[str, Any], graft.Graft]:
    """Plan to build attributes in an empty dict. The nodes stay where they are too, as what references lead to."""
    home = saved.components[component]
    home = replace(home, roots={**home.roots, _ROOT: Dict(v=dict(entries))})
    whole = replace(saved, components={**saved.components, component: home})
    found: dict[str, Any] = {}
    return found, graft.plan(whole, {_ROOT: found, _KNOWN: _known(saved)}, training_policy())


def _known(saved: Snapshot) -> list[type]:
    """Return the classes that a checkpoint names and a file may name: documents get no others.

    Objects of those of SB3's are built, for which their modules have to be there.
    """
    nodes = [
        node
        for component in saved.components.values()
        for root, value in component.roots.items()
        for _, node in visit(root, value)
    ]
    for name in sorted({node.c for node in nodes if isinstance(node, Object)}):
        load_module_of(name)
    names = sorted({node.q for node in nodes if isinstance(node, Class)})
    return [cls for cls in map(class_of, names) if cls is not None]


def _problems(plan: graft.Graft) -> Iterator[str]:
    """Yield what cannot be built."""
    for one in plan.differences:
        inside = one.place.startswith(f"{_ROOT}/")
        if one.level == "error" or (inside and one.level in ("lost", "forgotten", "untrusted")):
            yield one.detail
