"""What may stand in SB3's own `.zip`: a guard over what was built from the words of a checkpoint.

SB3's `load` opens pickles and calls what it finds in them: the classes of a policy, schedules, whatever stands in
front of a method. So a document that was made to harm must not become such a file: only classes of known kinds are
named, only values of known kinds are pickled, and each attribute that SB3 calls is of the kind that SB3 calls there.

Not promised: that numbers make sense together. SB3 says so when it loads them.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pickle import PickleBuffer
from types import SimpleNamespace
from typing import Any

from unbroken.state.nodes import class_name

PACKAGES = ("stable_baselines3", "sb3_contrib")
SCHEDULES = ("learning_rate", "lr_schedule", "clip_range", "clip_range_vf", "delta_std_schedule")
"""Attributes of SB3's algorithms that may be functions of the script."""
OF_THE_ZOO = "rl_zoo3.utils:SimpleLinearSchedule"
"""What RL Zoo's `lin_0.001` becomes; like SB3's own schedules it is a number and nothing of the user's."""
_MODULES = tuple(f"{package}." for package in PACKAGES)
_PLAIN = frozenset(
    {
        "collections",
        "datetime",
        "decimal",
        "fractions",
        "pathlib",
        "pathlib._local",
        "uuid",
        "zoneinfo",
        "array",
    }
)
"""Modules whose objects hold nothing but values."""
_BUILTINS = frozenset({
    type(None), bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, slice, range,
    type(...), type(NotImplemented), object, PickleBuffer, SimpleNamespace,
})  # fmt: skip
"""What else does: iterators and methods, which call something, are not among them."""
_TENSORS = frozenset({"torch", "torch.storage", "torch.nn.parameter"})
_MAKERS = frozenset({"builtins", "copyreg", "cloudpickle", "_codecs", "numpy", "torch", "collections"})
"""Packages whose functions stand in pickles of the above. No document leads to one of them."""
_OF_THE_FILE = (":serialized:", ":type:")
"""What SB3's file has beside the entries of a dict. Its `load` opens the first as a pickle."""


def class_of(name: str) -> type | None:
    """Return the class of this name if a file may name it, and it is there. Only SB3's own modules are imported."""
    found = _loaded(name)
    return found if found is not None and _may_be_named(found) else None


def load_module_of(name: str) -> None:
    """Import the module of a class if it is one of SB3's: objects of it are built only where it is loaded."""
    module = name.partition(":")[0]
    if module.startswith(_MODULES) and module not in sys.modules:
        try:
            import_module(module)
        except (ImportError, ValueError):  # no such module; no name of one
            return


def algorithm_of(name: str) -> type | None:
    """Return the class of this name if it is an algorithm of SB3's of which models are made."""
    from stable_baselines3.common.base_class import BaseAlgorithm

    found = _loaded(name)
    own = found is not None and found.__module__.startswith(_MODULES) and issubclass(found, BaseAlgorithm)
    # The classes that algorithms derive from have no policies.
    return found if own and getattr(found, "policy_aliases", None) else None


def misfits(algorithm: type, data: Mapping[str, Any], blank: Mapping[str, Any]) -> dict[str, str]:
    """Return the attributes that cannot stand in a file of this algorithm, and why. `blank`: those of a new one."""
    return {
        name: reason
        for name, value in data.items()
        if (reason := _misfit(algorithm, name, value, blank.get(name))) is not None
    }


def _loaded(name: str) -> type | None:
    load_module_of(name)
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for number, part in enumerate(qualname.split(".")):
        if number and not isinstance(found, type):
            return None  # a module has other modules as attributes, and by them all that there is
        found = getattr(found, "__dict__", {}).get(part)
    # A name vouches for the class that says it of itself, and for none that is found under it as well.
    return found if isinstance(found, type) and class_name(found) == name else None


def _may_be_named(cls: type) -> bool:
    return any(cls.__module__.startswith(modules) and issubclass(cls, base) for modules, base in _named())


@cache
def _named() -> tuple[tuple[str | tuple[str, ...], type], ...]:
    """Return where the classes are that a file may name, and what they are: to make one of them does nothing else."""
    from gymnasium import Space
    from numpy import generic
    from stable_baselines3.common.buffers import BaseBuffer
    from torch.nn import Module
    from torch.optim import Optimizer

    return (
        (_MODULES, Module),  # policies and extractors too
        (_MODULES, Optimizer),
        (_MODULES, BaseBuffer),
        ("torch.nn.modules.", Module),
        ("torch.optim.", Optimizer),
        ("gymnasium.spaces.", Space),
        ("numpy", generic),  # the dtype of a noise
    )


@cache
def _held() -> tuple[tuple[str | tuple[str, ...], type], ...]:
    """Return where the classes are whose objects a file may hold, and what they are."""
    import enum

    import numpy as np
    from gymnasium import Space
    from stable_baselines3.common.noise import ActionNoise

    kinds = (np.ndarray, np.generic, np.dtype, np.random.Generator, np.random.BitGenerator)
    return (
        *(("numpy", kind) for kind in (*kinds, np.random.RandomState, np.random.SeedSequence)),
        ("gymnasium.spaces.", Space),
        *((_MODULES, kind) for kind in (ActionNoise, enum.Enum, tuple, *_schedules())),
    )


@cache
def _schedules() -> tuple[type, ...]:
    from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule

    return FloatSchedule, LinearSchedule, ConstantSchedule


def _may_be_held(cls: type) -> bool:
    module = cls.__module__
    return (
        cls in _BUILTINS
        or module in _PLAIN
        or module in _TENSORS
        or class_name(cls) == OF_THE_ZOO
        or any(module.startswith(modules) and issubclass(cls, base) for modules, base in _held())
    )


def _is_maker(value: Any) -> bool:
    """Whether this is a function by which pickles of what may be held make it. Some are of types of Cython's own."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not (callable(value) and isinstance(module, str) and isinstance(name, str)):
        return False
    loaded: Any = sys.modules.get(module)
    return module.partition(".")[0] in _MAKERS and getattr(loaded, "__dict__", {}).get(name) is value


def _misfit(algorithm: type, name: str, value: Any, usual: Any) -> str | None:
    if callable(getattr(algorithm, name, None)):
        return f"{name} would stand in front of a method of {algorithm.__name__}."
    fields: Any = value if isinstance(value, dict) else getattr(value, "__dict__", ())
    if any(isinstance(key, str) and str.__str__(key) in _OF_THE_FILE for key in fields):
        return f"{name} has an entry that SB3 would take for a pickle of its own."
    wrong = _foreign(value)
    if wrong is not None:
        return f"{name} holds {wrong}, which is nothing that SB3 keeps of a model."
    for place, found, needed, fits in _calls(algorithm, name, value, usual):
        if not fits:
            return f"{place} is {_said(found)}, and SB3 needs {needed}."
    return None


def _foreign(value: Any) -> str | None:
    """Return the first thing in the pickle of a value that may not be in the file."""
    import cloudpickle

    found: list[str] = []

    class Reader(cloudpickle.Pickler):  # type: ignore[misc]
        """Sees every single object that goes into a pickle, by whatever way."""

        def persistent_id(self, obj: Any) -> Any:
            if isinstance(obj, type):
                fits = _may_be_held(obj) or _may_be_named(obj)
                name = class_name(obj)
            else:
                fits = _may_be_held(type(obj)) or _is_maker(obj)
                name = class_name(type(obj))
            if not fits:
                found.append(name)
                raise _Found
            return None

    try:
        Reader(io.BytesIO()).dump(value)
    except _Found:
        return found[0]
    except Exception as error:  # noqa: BLE001 - whatever a library says of a value that it does not pickle
        return f"something that cannot be pickled ({type(error).__name__}: {error})"
    return None


class _Found(Exception):
    """Something that may not be in the file."""


def _calls(algorithm: Any, name: str, value: Any, usual: Any) -> Iterator[tuple[str, Any, str, bool]]:
    """Yield what SB3 calls or counts with: its place, what stands there, what has to, and whether it does."""
    from gymnasium import Space
    from stable_baselines3.common.buffers import BaseBuffer
    from stable_baselines3.common.noise import ActionNoise
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from torch.nn import Module
    from torch.optim import Optimizer

    def derived(cls: Any, *bases: type) -> bool:
        return isinstance(cls, type) and issubclass(cls, bases)

    if name == "num_timesteps":
        yield name, value, "a number of steps", _is_number(value, whole=True) and value >= 0
    elif name in ("observation_space", "action_space"):
        yield name, value, "a space of Gymnasium", isinstance(value, Space)
    elif name == "policy_class":
        policies = tuple(algorithm.policy_aliases.values())
        yield name, value, f"a policy of {algorithm.__name__}", derived(value, *policies)
    elif name in ("rollout_buffer_class", "replay_buffer_class"):
        yield name, value, "a class of buffers", value is None or derived(value, BaseBuffer)
    elif name == "action_noise":
        yield name, value, "a noise", value is None or isinstance(value, ActionNoise)
    elif name in SCHEDULES:
        missing = value is None and name != "learning_rate"
        yield name, value, "a number or a schedule", missing or _is_rate(value)
    elif name == "policy_kwargs":
        yield name, value, "a dict", isinstance(value, dict)
        for key, base, needed in (
            ("features_extractor_class", BaseFeaturesExtractor, "a class of features extractors"),
            ("activation_fn", Module, "a class of layers"),
            ("optimizer_class", Optimizer, "a class of optimizers"),
        ):
            if key in value:
                yield f"{name}['{key}']", value[key], needed, derived(value[key], base)
    elif type(usual) in (int, float) and name != "train_freq":
        yield name, value, "a number", value is None or isinstance(value, bool) or _is_number(value)


def _is_number(value: Any, *, whole: bool = False) -> bool:
    import numpy as np

    kinds = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    return isinstance(value, kinds) and not isinstance(value, bool)


def _is_rate(value: Any) -> bool:
    """Whether this is a number from which SB3 makes a schedule, or a schedule of numbers."""
    if isinstance(value, _schedules()) or class_name(type(value)) == OF_THE_ZOO:
        parts = vars(value).values()
        return bool(parts) and all(map(_is_rate, parts))
    return _is_number(value) and not math.isnan(value)


def _said(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {class_name(value)}"
    return (
        repr(value)[:60] if isinstance(value, (str, int, float, type(None))) else f"a {type(value).__name__}"
    )
