"""Fills a model of Stable-Baselines3 from an export: weights, the replay buffer, statistics of VecNormalize.

Everything is read and compared before anything is written: an export that does not fit leaves the model as it is.

Not promised: to go on exactly. Optimizer, generators, schedules and counters of the model stay its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from unbroken.adapters.neutral.reading import Export, Normalizer, load
from unbroken.adapters.neutral.rows import Rows
from unbroken.errors import ConfigError, StateMismatch, installing

if TYPE_CHECKING:
    import torch
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.vec_env import VecNormalize

Write = Callable[[], None]
Tensors = Mapping[str, Any]


@dataclass(slots=True)
class Carried:
    """What `into_sb3` has taken over, and what it has left. Each entry is a line for people."""

    carried: list[str] = field(default_factory=list[str])
    left: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        return "\n".join(
            [*(f"carried  {line}" for line in self.carried), *(f"left     {line}" for line in self.left)]
        )


def into_sb3(
    directory: str | os.PathLike[str],
    model: BaseAlgorithm,
    *,
    networks: Mapping[str, str] | None = None,
    fields: Mapping[str, str] | None = None,
    replay: str = "",
) -> Carried:
    """Take an export over into a model that stands ready, with its environment.

    Weights: those of an export from SB3 go into `model.policy` by their names. From anywhere else `networks` says which part
    of `model.policy` gets which network of the export, or which part of it: `{"q_net.q_net": "policy"}`, or
    `{"action_net": "default_policy:pi.net.mlp"}`. Tensors then go by name, or, where the names differ, in their order.

    The replay buffer, if the model has one, gets the export's (`replay` names one of several), oldest first; `fields` maps
    SB3's names (obs, next_obs, actions, rewards, dones or terminated, truncated) to the buffer's where they are
    called otherwise. Where there are more rows than room, the newest stay.

    Statistics of observations and rewards go into the `VecNormalize` around `model.env`, if there is one.

    Raises:
        ConfigError: the directory holds no export, a name is not there or meant twice, or SB3 is not installed.
        StateMismatch: a shape, a type or an order of rows does not fit. The model is as it was.
        CorruptObject: a file is not what was written.
        UnsupportedFormat: a newer Unbroken wrote the export.
    """
    try:
        import_module("stable_baselines3")
    except ImportError as error:
        raise ConfigError(
            "into_sb3 needs Stable-Baselines3, which is not installed.", hint=installing("stable-baselines3")
        ) from error
    export, report = load(directory), Carried()
    writes = [
        *_weights(export, model, networks, report),
        *_replay(export, model, fields or {}, replay, report),
        *_statistics(export, model, report),
    ]
    for write in writes:
        write()
    report.left += [
        "the optimizer, random generators, schedules and counters are the model's own",
        *(f"{left.what}: {left.why}" for left in export.document.left),
    ]
    return report


def _weights(
    export: Export, model: BaseAlgorithm, networks: Mapping[str, str] | None, report: Carried
) -> list[Write]:
    policy: Any = model.policy
    own: dict[str, torch.Tensor] = policy.state_dict()
    if networks is None:
        if export.document.source.framework != "stable_baselines3":
            if export.document.networks:
                report.left.append(
                    "weights: say which go where, with networks="
                    f"{{part of model.policy: one of {', '.join(n.name for n in export.document.networks)}}}"
                )
            return []
        networks = {"": export.network().name}
    made: dict[str, torch.Tensor] = {}
    for part, source in networks.items():
        tensors = _part_of_export(export, source)
        expected = {name: tensor for name, tensor in own.items() if not part or name.startswith(f"{part}.")}
        if not expected:
            raise ConfigError(
                f"model.policy has no part {part!r} with weights.",
                hint=f"Its parts are: {', '.join(sorted({n.rpartition('.')[0] for n in own}))}.",
            )
        prefix = f"{part}." if part else ""
        if made.keys() & expected.keys():
            raise ConfigError(
                f"networks= gives weights of model.policy.{part} twice.", hint="Name each part once."
            )
        made.update(_matched(expected, tensors, prefix, source, _advice(export, model)))
        report.carried.append(f"{len(expected)} tensors of {source} -> model.policy{prefix and '.' + part}")
    untouched = sorted({name.partition(".")[0] for name in own.keys() - made.keys()})
    if untouched:
        report.left.append(f"weights of model.policy that nothing was said of: {', '.join(untouched)}")
    return [lambda: _load(policy, own, made)]


def _load(policy: Any, own: Tensors, made: Tensors) -> None:
    policy.load_state_dict({**own, **made})


def _part_of_export(export: Export, source: str) -> dict[str, torch.Tensor]:
    name, _, part = source.partition(":")
    tensors = export.state_dict(name)
    if not part:
        return tensors
    found = {n.removeprefix(f"{part}."): t for n, t in tensors.items() if n.startswith(f"{part}.")}
    if not found:
        parts = sorted({n.rpartition(".")[0] for n in tensors})
        raise ConfigError(f"The network {name} has no part {part!r}.", hint=f"It has: {', '.join(parts)}.")
    return found


def _advice(export: Export, model: BaseAlgorithm) -> str:
    """Return what to do where weights do not fit."""
    trained, own = export.document.source.algorithm.rpartition(":")[2], type(model).__name__
    if export.document.source.framework == "stable_baselines3" and trained not in ("", own):
        return f"A {trained} has trained it, and the model is a {own}: build a {trained}, or say with networks= which part goes where."
    return "Build it with the sizes of the export, or say with networks= which part goes where."


def _matched(
    expected: Tensors, tensors: Tensors, prefix: str, source: str, advice: str
) -> dict[str, torch.Tensor]:
    """Return the tensor for each name: by the names, or else in their order."""
    inside = {name.removeprefix(prefix): name for name in expected}
    if inside.keys() == tensors.keys():
        pairs = {inside[name]: tensor for name, tensor in tensors.items()}
    elif len(inside) == len(tensors):
        pairs = dict(zip(inside.values(), tensors.values(), strict=True))
    else:
        raise _unfit(f"{source} has {len(tensors)} tensors", [f"the model has {len(expected)} there"], advice)
    wrong = [
        f"{name}: {_shown(expected[name])} in the model, {_shown(tensor)} in the export"
        for name, tensor in pairs.items()
        if (expected[name].shape, expected[name].dtype) != (tensor.shape, tensor.dtype)
    ]
    if wrong:
        raise _unfit(f"{source} does not fit the model", wrong, advice)
    return pairs


def _shown(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _unfit(message: str, differences: list[str], advice: str) -> StateMismatch:
    return StateMismatch(f"{message}. The model is as it was.", hint=advice, differences=differences)


def _replay(
    export: Export, model: BaseAlgorithm, fields: Mapping[str, str], name: str, report: Carried
) -> list[Write]:
    buffer: Any = getattr(model, "replay_buffer", None)
    held = export.replay
    if name and name not in held:
        raise ConfigError(
            f"The export has no buffer {name!r}.", hint=f"There are: {', '.join(held) or 'none'}."
        )
    if not held or buffer is None:
        if held:
            report.left.append("the replay buffer: the model has none")
        return []
    if len(held) > 1 and not name:
        raise ConfigError("The export has several buffers.", hint=f"Say replay= one of: {', '.join(held)}.")
    source = held[name or next(iter(held))]
    from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer

    if type(buffer) not in (ReplayBuffer, DictReplayBuffer):
        report.left.append(f"the replay buffer: how a {type(buffer).__name__} takes rows is not known")
        return []
    if source.record.order != "oldest-first":
        report.left.append("the replay buffer: which of its rows is the oldest is not known")
        return []
    rows = Rows(source, fields, buffer)
    report.carried.append(
        f"{rows.kept} of {rows.steps} steps of {rows.environments} environments -> model.replay_buffer"
        if rows.kept < rows.steps
        else f"{rows.steps} steps of the replay buffer -> model.replay_buffer"
    )
    if rows.dropped:
        report.left.append(
            f"the {rows.dropped} oldest transitions: {rows.environments} environments take rows together"
        )
    return [rows.fill]


def _statistics(export: Export, model: BaseAlgorithm, report: Carried) -> list[Write]:
    found = {(one.record.role, one.record.key): one for one in export.normalizers.values() if _is_main(one)}
    if not found:
        return []
    outer: VecNormalize | None = model.get_vec_normalize_env()
    if outer is None:
        report.left.append("running statistics: the model's environment has no VecNormalize around it")
        return []
    writes: list[Write] = []
    for (role, key), one in found.items():
        held: Any = getattr(outer, "obs_rms" if role == "observation" else "ret_rms", None)
        if isinstance(held, dict) or key:
            held = held.get(key) if isinstance(held, dict) else None
        if held is None or np.shape(held.mean) != one.mean.shape:
            if held is None:
                report.left.append(f"statistics {one.record.name}: VecNormalize keeps none there")
                continue
            raise StateMismatch(
                "Running statistics do not fit. The model is as it was.",
                hint="Build the model on environments with the same spaces.",
                differences=[
                    f"{one.record.name}: {np.shape(held.mean)} in the model, {one.mean.shape} in the export"
                ],
            )
        writes.append(_setting(held, one))
        report.carried.append(f"statistics {one.record.name} -> VecNormalize")
        _compare(outer, one, report)
    return writes


def _is_main(one: Normalizer) -> bool:
    plain = f"{one.record.role}s"
    return bool(one.record.role) and one.record.name in (plain, f"{plain}.{one.record.key}")


def _setting(held: Any, one: Normalizer) -> Write:
    def write() -> None:
        held.mean = one.mean.copy() if one.mean.ndim else np.float64(one.mean)
        held.var = one.var.copy() if one.var.ndim else np.float64(one.var)
        held.count = one.count

    return write


def _compare(outer: VecNormalize, one: Normalizer, report: Carried) -> None:
    """Settings are arguments of the script: what differs is said, and stays."""
    told = {
        "epsilon": one.record.epsilon,
        "clip_obs" if one.record.role == "observation" else "clip_reward": one.record.clip,
    }
    for name, value in told.items():
        if value is not None and float(value) != float(getattr(outer, name)):
            report.left.append(f"{name} of VecNormalize stays {getattr(outer, name)}; it was {value}")
