"""SB3's training loop, seen from outside: where it stands, and how it is made to stand elsewhere.

`learn()` and `collect_rollouts()` keep their place in local variables. `TrainingLoop` counts along
through instance attributes on the model, reports each clean point, and at the first rollout puts the
loop where its listener says.

Everything happens inside the first call of `collect_rollouts`: by then every callback has been told
that training starts, whatever its place in the list, and `learn()` has already asked whether there is
anything left to do, so a checkpoint in the last rollout still gets its last update.

All hooks are gone when the loop ends or raises. Not promised: that they are gone when `learn()` is
left by an error outside `collect_rollouts` and `train`; the next `install` or `remove` clears them. And
that something is held before `train()` where rollouts are collected by code that is not known.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import RolloutReturn, TrainFreq, TrainFrequencyUnit

from unbroken.adapters.sb3.clean_point import PolicyCall, SampleCall, has_known_loop, loops_of
from unbroken.adapters.sb3.loop import Listener, Loop, signature_of
from unbroken.adapters.sb3.position import END, ROLLOUT, START, STEP, STOPPED, Position
from unbroken.adapters.sb3.reentry import reenter, result_of
from unbroken.capture.hooks import Hook
from unbroken.types import MISSING


class TrainingLoop(Loop):
    """The loop of one `learn()` call of `model`. `callback` is ours, by which we know our own calls."""

    def __init__(
        self, model: OnPolicyAlgorithm | OffPolicyAlgorithm, callback: BaseCallback, listener: Listener
    ) -> None:
        super().__init__(model, callback, listener)
        self.model = model
        self._reentry: Position | None = None
        self._reentered = False
        self._restored: tuple[int, float] | None = None
        self._catching_up = 0
        self._collect = Hook(model, "collect_rollouts", self._collect_rollouts, keeper=self)
        self._signature = signature_of(model, "collect_rollouts")
        self._train = Hook(model, "train", self._train_model, keeper=self)
        self._logs = Hook(model, "dump_logs", self._dump_logs, keeper=self)
        self._point: PolicyCall | SampleCall | None = None
        self._given: list[str] = []
        self._began_with: dict[str, Any] = {}

    def install(self) -> None:
        """Put the hooks on the model."""
        super().install()
        self._collect.install()
        self._train.install()

    def remove(self) -> None:
        """Take every hook away. May be called twice."""
        super().remove()
        if self._point is not None:
            self._point.remove()
        for hook in (self._collect, self._train, self._logs):
            hook.remove()

    @property
    def knows_steps(self) -> bool:
        """Whether there are clean points inside rollouts, or only between them."""
        return has_known_loop(self.model)

    def _collect_rollouts(self, *args: Any, **kwargs: Any) -> Any:
        call = self._signature.bind(*args, **kwargs)
        root: BaseCallback = call.arguments["callback"]
        if not self._is_ours(root):
            # Left over from a `learn()` that raised outside our sight; this one is not ours.
            self.remove()
            return self._collect.original(*args, **kwargs)
        try:
            if self._root is None:
                self._given = _taken_from(self.model, call)
                self._begin(root)
                self._read_again(call)
            if self._over:
                return self._nothing()
            if self._catching_up:
                self._catching_up -= 1
                if self._catching_up or self._reentry is None or self._reentry.kind != ROLLOUT:
                    return True
            return self._rollout(call)
        except BaseException as error:
            self._abandon(error)
            raise

    def _begin(self, root: BaseCallback) -> None:
        model = self.model
        steps, wanted = model.num_timesteps, model._total_timesteps
        self._watch_end(root)
        loops = loops_of(model)
        if not self.knows_steps:
            pass  # it may call a known loop, and hold what only itself knows while that runs
        elif isinstance(model, OffPolicyAlgorithm):
            self._point = SampleCall(model, loops, self._at_step)
        else:
            self._point = PolicyCall(model.policy, loops, self._at_step)
        restored = self._listener.begin(root)
        if restored is None:
            return
        self.position = restored
        if restored.kind == STOPPED or (restored.kind == END and model.num_timesteps >= wanted):
            self._over = True
            return
        self._reentry = restored
        if isinstance(model, OnPolicyAlgorithm) and restored.rollouts:
            # `learn` counts its iterations in a local variable, which decides when it logs. It is brought
            # to where it was by letting `learn` run that many empty iterations.
            self._restored = (model.num_timesteps, model._current_progress_remaining)
            model.num_timesteps = steps
            self._catching_up = restored.rollouts
            self._logs.install()

    def _read_again(self, call: inspect.BoundArguments) -> None:
        """Take these arguments from the model once more: `learn` has read them before anything was restored, and a
        training may have put others there since it began. A rollout in progress keeps what it began with."""
        position = self.position
        own = _noted(position) if position.kind == STEP else {}
        for name in self._given:
            if name in own:
                call.arguments[name] = own[name]
                continue
            now = getattr(self.model, name)
            inside = name == "train_freq" and position.kind == STEP and now.unit == TrainFrequencyUnit.STEP
            if not (inside and now.frequency <= position.steps):  # or this rollout goes on as it began
                call.arguments[name] = now

    def _rollout(self, call: inspect.BoundArguments) -> Any:
        model, position = self.model, self.position
        reentry, self._reentry = self._reentry, None
        if self._restored is not None:
            (model.num_timesteps, model._current_progress_remaining), self._restored = self._restored, None
        if reentry is not None and reentry.kind == ROLLOUT:
            return result_of(model, reentry)
        self._logs.remove()
        self._began_with = {name: call.arguments[name] for name in self._given}
        if reentry is not None and reentry.kind == STEP:
            self._reentered = True
            result = reenter(model, self._collect.original, call, reentry)
        else:
            position.kind, position.steps, position.episodes_before = START, 0, model._episode_num
            if not self.knows_steps and reentry is None:
                self._listener.at_step(position)
            result = self._collect.original(*call.args, **call.kwargs)
        self._ended_early = not (result.continue_training if isinstance(result, RolloutReturn) else result)
        if self.knows_steps:
            # Here and not at the next clean point: there may be none, and a checkpoint of the end counts them.
            position.episodes += self._ended()
        position.rollouts += 1
        position.began_with()
        return result

    def _nothing(self) -> bool | RolloutReturn:
        """Return what tells `learn` to end at once."""
        return RolloutReturn(0, 0, False) if isinstance(self.model, OffPolicyAlgorithm) else False

    def _train_model(self, *args: Any, **kwargs: Any) -> Any:
        if self._catching_up or self._reentry is not None:
            return None
        self._logs.remove()  # what `learn` logs after a rollout was logged before the checkpoint
        position = self.position
        try:
            if not self.knows_steps:
                return self._train.original(*args, **kwargs)
            if position.kind == STEP:
                position.kind = ROLLOUT
                position.steps += 1
            with self._listener.during("train", position):
                return self._train.original(*args, **kwargs)
        except BaseException as error:
            self._abandon(error)
            raise

    def _dump_logs(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is logged twice while `learn` catches up."""

    def _at_step(self) -> None:
        position = self.position
        if self._reentered:
            # The very point at which the checkpoint was taken.
            self._reentered = False
            return
        if (
            position.kind == STEP
        ):  # at the first of a rollout, those of the one before were counted at its end
            position.steps += 1
            position.episodes += self._ended()
        position.kind = STEP
        self._note()
        self._listener.at_step(position)

    def _note(self) -> None:
        """Let the position say what this rollout goes on with, where a callback has put another on the model."""
        noted: dict[str, int] = {}
        lost: list[str] = []
        for name, own in self._began_with.items():
            now = getattr(self.model, name, MISSING)
            if now is own or (name in _NUMBERS and now == own):
                continue
            if isinstance(own, TrainFreq) and type(own.frequency) is int:
                noted["steps" if own.unit == TrainFrequencyUnit.STEP else "episodes"] = own.frequency
            elif name == "learning_starts" and type(own) is int and own >= 0:
                noted[name] = own
            else:
                lost.append(name)
        self.position.began_with(**noted, lost=lost)

    def _ended(self) -> int:
        """Return how many episodes the last environment step of this rollout has ended."""
        model, stopped = self.model, 0
        if self._ended_early:
            # A callback has said so in the middle of the step: it is told of these, the model is not yet.
            assert self._root is not None
            stopped = int(np.count_nonzero(self._root.locals.get("dones", ())))
        if isinstance(model, OffPolicyAlgorithm):
            return model._episode_num + stopped - self.position.episodes
        if self._ended_early:
            return stopped
        starts = model._last_episode_starts
        return 0 if starts is None else int(np.count_nonzero(starts))


_NUMBERS = ("train_freq", "learning_starts")
_ARGUMENTS = ("action_noise", "train_freq", "learning_starts", "replay_buffer", "rollout_buffer")
"""Arguments of `collect_rollouts` for which `learn` passes the attribute of the same name."""


def _taken_from(model: BaseAlgorithm, call: inspect.BoundArguments) -> list[str]:
    """Return which arguments of `call` are attributes of the model."""
    return [
        name
        for name in _ARGUMENTS
        if name in call.arguments and call.arguments[name] is getattr(model, name, MISSING)
    ]


def _noted(position: Position) -> dict[str, Any]:
    """Return the arguments that the rollout of `position` began with and the model has no more."""
    found: dict[str, Any] = {}
    if position.learning_starts is not None:
        found["learning_starts"] = position.learning_starts
    if position.steps_of_rollout is not None:
        found["train_freq"] = TrainFreq(position.steps_of_rollout, TrainFrequencyUnit.STEP)
    if position.episodes_of_rollout is not None:
        found["train_freq"] = TrainFreq(position.episodes_of_rollout, TrainFrequencyUnit.EPISODE)
    return found
