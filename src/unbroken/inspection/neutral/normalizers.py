"""Running statistics of a checkpoint: any object that holds mean, var and count is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unbroken.adapters.neutral.directory import Bits
from unbroken.format.neutral import Normalizer, Number, number
from unbroken.inspection.neutral.cursor import Checkpoint, Cursor

FILE = "normalizers.safetensors"
_TRAINING = "model/env"
"""Where the environments of a training with Stable-Baselines3 stand; those of an evaluation stand elsewhere."""
_OBSERVATIONS, _RETURNS = ("obs_rms", "observation_rms"), ("ret_rms", "return_rms")


@dataclass(frozen=True, slots=True)
class Statistics:
    """A normalizer of a checkpoint with its numbers."""

    record: Normalizer
    mean: NDArray[Any]
    var: NDArray[Any]

    @property
    def bits(self) -> dict[str, Bits]:
        """The tensors as they are written."""
        pairs = ((self.record.mean, self.mean), (self.record.var, self.var))
        return {name: Bits("float64", values) for name, values in pairs}


def statistics_of(checkpoint: Checkpoint) -> list[Statistics]:
    """Return all running statistics."""
    found: list[Statistics] = []
    taken: set[str] = set()
    owners = list(checkpoint.objects())
    inside: dict[int, tuple[Cursor, str, str]] = {}
    for owner in owners:
        for name, held in owner.attributes():
            if _is_statistics(held):
                inside.setdefault(id(held.value), (owner, name, ""))
            for key, one in held.items():
                if _is_statistics(one):
                    inside.setdefault(id(one.value), (owner, name, key))
    # Those of the training's environments first: they get the plain names.
    for at in sorted(owners, key=lambda one: not one.place.startswith(f"{_TRAINING}/")):
        if _is_statistics(at):
            owner, name, key = inside.get(id(at.value), (at, at.place.rpartition("/")[2], ""))
            found.append(_read(at, owner, name, key, taken))
    return found


def _is_statistics(at: Cursor) -> bool:
    return (
        bool(at.cls)
        and all(_values(at.attr(name)) is not None for name in ("mean", "var"))
        and at.attr("count").number() is not None
    )


def _values(at: Cursor) -> NDArray[Any] | None:
    found = at.plain()
    if isinstance(found, bool) or not isinstance(found, (int, float, np.ndarray)):
        return None
    values: NDArray[Any] = np.asarray(found)
    return values.astype(np.float64) if values.dtype.kind == "f" else None


def _read(at: Cursor, owner: Cursor, attribute: str, key: str, taken: set[str]) -> Statistics:
    role: Any = "observation" if attribute in _OBSERVATIONS else "reward" if attribute in _RETURNS else ""
    plain = f"{role}s.{key}" if key else f"{role}s"
    name = plain if role and plain not in taken else at.place.replace("/", ".")
    while name in taken:
        name += "_"
    taken.add(name)
    suffix, clip = ("obs", "clip_obs") if role == "observation" else ("reward", "clip_reward")
    active = owner.attr(f"norm_{suffix}").plain() is not False
    keys = owner.attr("norm_obs_keys").plain()
    if key and isinstance(keys, list):
        active = active and key in keys
    mean, var = _values(at.attr("mean")), _values(at.attr("var"))
    assert mean is not None
    assert var is not None
    count = at.attr("count").number()
    record = Normalizer(
        name=name,
        place=at.place,
        file=FILE,
        mean=f"{name}.mean",
        var=f"{name}.var",
        count=number(count if count is not None else 0.0),
        shape=list(mean.shape),
        role=role,
        key=key,
        epsilon=owner.attr("epsilon").number() if role else None,
        clip=_number(owner.attr(clip)) if role else None,
        gamma=owner.attr("gamma").number() if role == "reward" else None,
        active=active,
    )
    return Statistics(record, mean, var)


def _number(at: Cursor) -> Number | None:
    found = at.number()
    return None if found is None else number(found)
