"""A user's own capturer for an environment (or any object) whose state its attributes do not show.

```python
import unbroken

unbroken.register_env_capturer(
    MyEnv,
    capture=lambda env: {"physics": env.engine.dump()},
    restore=lambda env, state: env.engine.load(state["physics"]),
)
```

What `capture` returns is walked like everything else: plain values, containers, arrays. It is copied at
once. Whether the two functions bring the environment back is tried in copies of the process before training;
a handle into the memory of this process is found so, in what they return and in the attributes. Attributes come
back before `restore` is called, which may need them and may change what they lead to.

Not promised: anything about what cannot be tried in a copy, like a simulator behind a socket: there the user's
word stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from unbroken.errors import ConfigError, RestoreFailed
from unbroken.state.nodes import Value
from unbroken.state.policy import Captor, Phase, Policy

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

_SPACES = frozenset({"action_space", "observation_space", "_np_random", "_np_random_seed"})


@dataclass(frozen=True, slots=True)
class RegisteredCaptor:
    """Captor around a user's two functions."""

    capture_state: Callable[[Any], Mapping[str, Any]]
    restore_state: Callable[[Any, dict[str, Any]], None]
    attributes_too: bool

    def attributes(self, obj: Any) -> frozenset[str] | None:
        return None if self.attributes_too else _SPACES

    def capture(self, obj: Any, walk: Walk) -> dict[str, Value]:
        _vouched(walk)
        return {"state": walk.child("<state>", dict(self.capture_state(obj)))}

    def plan(self, extra: dict[str, Value], obj: Any, graft: Graft) -> None:
        state = graft.value("<state>", extra.get("state"))
        if not isinstance(state, dict):
            graft.error("was saved without the state that its capturer needs.")
            return
        # Values are complete only once the writes planned so far have run: same phase, later place.
        graft.write(self._bring_back, obj, state, graft.place, phase=Phase.WRITE)

    def _bring_back(self, obj: Any, state: dict[str, Any], place: str) -> None:
        try:
            self.restore_state(obj, state)
        except Exception as error:  # whatever a person's own function raises
            name = type(obj).__qualname__
            raise RestoreFailed(
                f"The capturer registered for {name} could not bring back {place}: its restore raised"
                f" {type(error).__name__}: {error}.",
                hint=_TRY_WITHOUT if self.attributes_too else _CORRECT,
            ) from error


def _vouched(walk: Walk) -> None:
    """Leave it to the capturer what its object holds and no walk can save (a simulator in C): one verdict on it, of
    the trial that the capturer was put to."""
    below, notes = f"{walk.place}/", walk.snapshot.notes
    for index, note in enumerate(notes):
        if note.kind == "not captured" and note.place.startswith(below):
            notes[index] = replace(note, kind="external")


_CORRECT = "The checkpoint is as it was: correct that function, and start again."
_TRY_WITHOUT = (
    "The checkpoint is as it was. The attributes had come back before, so one that holds a handle of the former"
    " process (an id, an address) leads nowhere in this one: register the capturer with attributes=False, or correct"
    " its restore, and start again."
)

_captors: dict[type, RegisteredCaptor] = {}


def register_env_capturer(
    cls: type,
    *,
    capture: Callable[[Any], Mapping[str, Any]],
    restore: Callable[[Any, dict[str, Any]], None],
    attributes: bool = True,
) -> None:
    """Use these two functions for objects of `cls` and its subclasses, for as long as the process lives.

    `attributes=False`: of the object's attributes only its spaces and its generator are walked; the
    functions carry all the rest, and what an attribute holds is what the new process has put there: a handle.
    A later registration for the same class replaces the earlier one.

    Raises:
        ConfigError: `cls` is no class, or one of the two is no function.
    """
    if not isinstance(cls, type):
        raise ConfigError(f"{cls!r} is not a class.", hint="Register the class, not an instance of it.")
    given: dict[str, object] = {"capture": capture, "restore": restore}
    for name, function in given.items():
        if not callable(function):
            raise ConfigError(
                f"The capturer of {cls.__qualname__} needs a function {name}, not {function!r}.",
                hint="Give a function for capture and one for restore.",
            )
    _captors[cls] = RegisteredCaptor(capture, restore, attributes)


def every() -> dict[type, RegisteredCaptor]:
    """Return what is registered in this process, for another one to adopt."""
    return dict(_captors)


def adopt(captors: Mapping[type, RegisteredCaptor]) -> None:
    """Register what another process has registered."""
    _captors.update(captors)


def registered(obj: object) -> Captor | None:
    """Return the capturer of the nearest registered base class, or None."""
    if not _captors:
        return None
    return next((_captors[base] for base in type(obj).__mro__ if base in _captors), None)


POLICY = Policy(captors=(registered,))
