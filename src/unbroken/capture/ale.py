"""Atari games of the Arcade Learning Environment, exact at every step, with sticky actions too.

The emulator's state (`ALEState` with its generators) is complete but for one thing: the action that it
executed last, which a sticky frame executes again, cannot be read. It can be *known*: a reset sets it to
NOOP, and whether a frame was sticky follows from the emulator's own generator, which is part of the state.
The tracker keeps the state at the last reset and the actions since; at a capture it draws the same numbers
and so finds the last frame that was not sticky. The prediction is checked each time: the generator must end
where the emulator's own one stands. A restore executes that action until it is certainly the last executed
one, then loads the state. Nothing is replayed and an episode may be of any length.

Attached in the middle of an episode, or when somebody stepped the emulator directly, the hidden action is
found by experiment: it matters only while the next frames are sticky, and these frames, run with each
candidate, show which one it is. The emulator is put back; only its picture is one frame ahead until the
next step, as after any restore (the picture is no part of the state; observations are not affected).

Not promised: sticky *continuous* actions between a reset and the next frame that is not sticky, and an
emulator whose generator this module cannot read; both are declared approximate in that checkpoint.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unbroken.capture.hooks import Hook, keeper_of
from unbroken.errors import RestoreFailed
from unbroken.state.nodes import Array, Value
from unbroken.state.policy import Captor, Phase, Policy

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

NOOP = 0
UNLIKELY = 1e-18
"""Priming stops when the chance that no frame took the action is below this."""

_GENERATOR = re.compile(rb"(?:\d+ ){624}\d+")


class Unreadable(Exception):
    """The emulator's generator is not where it was expected in the state."""


def emulator_state(ale: Any) -> bytes:
    """Return the whole state of an emulator, its generators included."""
    return bytes(ale.cloneState(include_rng=True).__getstate__())


def _words(state: bytes) -> NDArray[np.uint64]:
    """Return the environment's Mersenne Twister: 624 words and the position. It ends the state."""
    found = [match.group() for match in _GENERATOR.finditer(state)]
    if not found:
        raise Unreadable
    return np.array(found[-1].split(), dtype=np.uint64)


def _generator(state: bytes) -> np.random.RandomState:
    words = _words(state)
    return _at(words[:624].astype(np.uint32), int(words[624]))


def _at(key: NDArray[np.uint32], position: int) -> np.random.RandomState:
    generator = np.random.RandomState()
    generator.set_state(("MT19937", key, position, 0, 0.0))
    return generator


def _stands_at(generator: np.random.RandomState, state: bytes) -> bool:
    own: Any = generator.get_state(legacy=False)
    # By what comes next, not by the words: they are renewed in blocks, at a moment of the library's choice.
    copy = _at(own["state"]["key"], int(own["state"]["pos"]))
    return bool(np.array_equal(copy.random_sample(700), _generator(state).random_sample(700)))


@dataclass(frozen=True, slots=True)
class Hidden:
    """The action executed last. `certain` is False where it had to be guessed."""

    action: int
    certain: bool = True


class StickyTracker:
    """Recorder of one `AtariEnv`: the emulator's state at an anchor, and the actions since."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.ale = env.ale
        self._hooks = (
            Hook(env, "step", self._step, keeper=self),
            Hook(env, "reset", self._reset, keeper=self),
        )
        self._anchor: Any = None
        self._hidden: Hidden | None = None
        self._actions: list[int] = []
        self._frames: list[int] = []
        """Frames of each action; empty while every action has the same number of them."""
        self._blind = False

    @property
    def stickiness(self) -> float:
        return float(self.ale.getFloat("repeat_action_probability"))

    def install(self) -> None:
        """Start recording. At any point of an episode; a hidden action that matters is found now."""
        self._restart(self._find(emulator_state(self.ale)))
        for hook in self._hooks:
            hook.install()

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _restart(self, hidden: Hidden | None) -> None:
        self._anchor = self.ale.cloneState(include_rng=True)
        self._hidden = hidden
        self._actions.clear()
        self._frames.clear()
        self._blind = False

    def _reset(self, **kwargs: Any) -> Any:
        result = self._hooks[1].original(**kwargs)
        self._restart(Hidden(NOOP))
        return result

    def _step(self, action: Any) -> Any:
        env = self.env
        if env.continuous:
            self._blind = True
            return self._hooks[0].original(action)
        if not isinstance(env._frameskip, int):
            # The number of frames is drawn in the step: draw it ahead, from a copy.
            ahead = type(env.np_random.bit_generator)()
            ahead.state = env.np_random.bit_generator.state
            self._frames.append(int(np.random.Generator(ahead).integers(*env._frameskip)))
        self._actions.append(int(action))
        return self._hooks[0].original(action)

    def capture(self) -> tuple[bytes, Hidden]:
        """Return the emulator's state and the action that it executed last."""
        state = emulator_state(self.ale)
        hidden = self._follow(state)
        if hidden is None:
            hidden = self._find(state)
        self._restart(hidden)
        return state, hidden

    def _follow(self, state: bytes) -> Hidden | None:
        """Draw what the emulator drew since the anchor. None: it did something else meanwhile."""
        if self.stickiness <= 0:
            return Hidden(NOOP)
        if self._blind or self._hidden is None or not self._hidden.certain:
            return None
        try:
            generator = _generator(bytes(self._anchor.__getstate__()))
            count = len(self._actions)
            frames = np.array(self._frames or [self.env._frameskip] * count, dtype=np.int64)
            acted = generator.random_sample(int(frames.sum())) >= self.stickiness
            if not _stands_at(generator, state):
                return None
        except Unreadable:
            return None
        taken = np.flatnonzero(acted)
        if not taken.size:
            return self._hidden
        step = int(np.searchsorted(np.cumsum(frames), taken[-1], side="right"))
        return Hidden(int(self.env._action_set[self._actions[step]].value))

    def _find(self, state: bytes) -> Hidden:
        """Find the hidden action by experiment, and leave the emulator as it was."""
        p = self.stickiness
        if p <= 0 or p >= 1:
            return Hidden(NOOP)  # it is never executed again, or has been NOOP for ever
        try:
            sticky = _generator(state).random_sample(4096) < p
        except Unreadable:
            return Hidden(NOOP, certain=False)
        run = 4096 if sticky.all() else int(np.argmin(sticky))
        if not run or self.ale.game_over():
            return Hidden(NOOP)  # the next frame overwrites it, or no frame comes before the next reset
        start = self.ale.cloneState(include_rng=True)
        noop = self.env.ale.getLegalActionSet()[NOOP]
        for _ in range(run):
            self.ale.act(noop, 1.0)
        truth = emulator_state(self.ale)
        found = Hidden(NOOP, certain=False)
        for candidate in self.ale.getLegalActionSet():
            self._prime(int(candidate.value))
            self.ale.restoreState(start)
            for _ in range(run):
                self.ale.act(noop, 1.0)
            if emulator_state(self.ale) == truth:
                found = Hidden(int(candidate.value))
                break
        self._prime(found.action)
        self.ale.restoreState(start)
        return found

    def _prime(self, action: int) -> None:
        """Execute an action until it is certainly the last executed one. The state is lost."""
        p = self.stickiness
        if p >= 1:
            return
        if self.ale.game_over():
            self.ale.reset_game()
        frames = 1 if p <= 0 else math.ceil(math.log(UNLIKELY) / math.log(p))
        wanted = self.ale.getLegalActionSet()[action]
        for _ in range(frames):
            self.ale.act(wanted, 1.0)

    def restore(self, state: bytes, hidden: Hidden) -> None:
        """Bring the emulator to a captured state. Raises RestoreFailed if it does not get there."""
        import ale_py

        if self.stickiness > 0:
            self._prime(hidden.action)
        target: Any = ale_py.ALEState.__new__(ale_py.ALEState)
        target.__setstate__(state)
        self.ale.restoreState(target)
        if emulator_state(self.ale) != state:
            raise RestoreFailed(
                f"The emulator of {self.env._game} did not take the state that was saved.",
                hint="Resume with the version of ale-py that wrote the checkpoint.",
            )
        self._restart(hidden)


class AtariCaptor:
    """Captor of `AtariEnv`."""

    def attributes(self, obj: Any) -> frozenset[str]:
        return frozenset(vars(obj)) - {"ale", "_action_set", "step", "reset"}

    def capture(self, obj: Any, walk: Walk) -> dict[str, Value]:
        if not walk.contents:
            return {"game": str(obj._game)}
        tracker = keeper_of(obj, "step")
        if isinstance(tracker, StickyTracker):
            state, hidden = tracker.capture()
        else:
            state, hidden = StickyTracker(obj).capture()
        if not hidden.certain:
            walk.note("approximate", "the action that the emulator may repeat next could not be found.")
        b, inline = walk.pack(np.frombuffer(state, np.uint8))
        return {
            "game": str(obj._game),
            "state": Array(d="|u1", s=(len(state),), b=b, data=inline),
            "last action": hidden.action,
            "certain": hidden.certain,
        }

    def plan(self, extra: dict[str, Value], obj: Any, graft: Graft) -> None:
        if extra.get("game") != str(obj._game):
            graft.error(f"the game {extra.get('game')} was saved and the program plays {obj._game}.")
            return
        node, action = extra.get("state"), extra.get("last action")
        legal = len(obj.ale.getLegalActionSet())
        if not isinstance(node, Array) or not isinstance(action, int) or not 0 <= action < legal:
            graft.error("was saved without the emulator's state.")
            return
        tracker = keeper_of(obj, "step")
        if not isinstance(tracker, StickyTracker):
            tracker = StickyTracker(obj)
        state = graft.bytes_of(node.b, node.data).tobytes()
        hidden = Hidden(action, certain=extra.get("certain") is True)
        graft.write(partial(tracker.restore, state, hidden), phase=Phase.WORLD)


def is_atari(obj: object) -> bool:
    """Whether this is the environment that holds an emulator."""
    return any(
        f"{base.__module__}:{base.__qualname__}" == "ale_py.env:AtariEnv" for base in type(obj).__mro__
    )


_captor = AtariCaptor()


def _rule(obj: object) -> Captor | None:
    return _captor if is_atari(obj) else None


POLICY = Policy(
    external_classes=frozenset({"ale_py._ale_py:ALEInterface", "ale_py._ale_py:ALEState"}),
    external=frozenset({"ale_py._ale_py"}),
    captors=(_rule,),
)
