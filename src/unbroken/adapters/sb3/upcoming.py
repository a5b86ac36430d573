"""Which evaluations the next environment step sets off, known before it is made.

An `EvalCallback` evaluates inside a step, with its episodes in local variables: there is no clean point
until it is over. It is told by SB3's own rules: the count of calls, and `EveryNTimesteps` above it.

Not promised: an evaluation below any other event (a new best of another evaluation, say), or in a
callback that does not descend from `EvalCallback`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EvalCallback, EveryNTimesteps


@dataclass(frozen=True, slots=True)
class _Evaluation:
    callback: EvalCallback
    gate: EveryNTimesteps | None
    name: str

    def comes_at(self, step: int) -> bool:
        gate, every = self.gate, self.callback.eval_freq
        if gate is not None and step - gate.last_time_trigger < gate.n_steps:
            return False
        return every > 0 and (self.callback.n_calls + 1) % every == 0


class Evaluations:
    """Those of the training with the outermost callback `root`."""

    def __init__(self, model: BaseAlgorithm, root: BaseCallback) -> None:
        self._model = model
        self._all = [
            _Evaluation(callback, gate, f"evaluation {i}")
            for i, (callback, gate) in enumerate(_found(root, None))
        ]

    def coming(self) -> tuple[str, ...]:
        """Return the names of the evaluations that the next step sets off."""
        if not self._all:
            return ()
        after = self._model.num_timesteps + self._model.n_envs
        return tuple(one.name for one in self._all if one.comes_at(after))


def _found(
    callback: BaseCallback, gate: EveryNTimesteps | None
) -> Iterator[tuple[EvalCallback, EveryNTimesteps | None]]:
    if type(callback) is CallbackList:
        for member in callback.callbacks:
            yield from _found(member, gate)
    elif isinstance(callback, EvalCallback):
        yield callback, gate
    elif isinstance(callback, EveryNTimesteps) and gate is None and callback.callback is not None:
        yield from _found(callback.callback, callback)
