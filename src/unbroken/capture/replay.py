"""Action replay: for simulators whose state can be neither read nor written (Box2D and the like).

A recorder on the live environment keeps the generator's state before the last reset, the arguments of that
reset, the actions since, and a digest of everything that came back. A restore runs the same again in the
freshly built environment and compares the digest: a replay that comes out differently is refused, never
used. Environments that carry something over from one episode to the next (BipedalWalker keeps one world
for ever) are replayed from their construction, up to a stated ceiling of steps.

The recorder must see the last reset. It is installed after the first one; that one is rebuilt on a twin
from the seed that the environment remembers and accepted if generator and plain attributes agree; if not,
the state is approximate until the next reset, and the checkpoint says so.

Not promised: environments that read the clock, threads or the network (the digest refuses them), and
attributes that somebody changes from outside in the middle of an episode.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from unbroken.capture.hooks import Hook, keeper_of
from unbroken.capture.tape import (
    PLAIN_SETTINGS,
    Recording,
    Reset,
    Tape,
    Unrecordable,
    Witness,
    from_json,
    generator_text,
    read,
    set_generator,
    to_json,
)
from unbroken.errors import CorruptObject, RestoreFailed
from unbroken.state.nodes import Array, Value
from unbroken.state.policy import Captor, Phase, Policy

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

CEILING = 50_000
"""Steps of history that are kept and replayed at most; at 0.1 ms a step, a restore of five seconds."""

EARLIER_RESETS = 4
"""So many resets without a step between them are tried when the first episode is rebuilt."""

_log = logging.getLogger(__name__)


def _settings(env: Any) -> dict[str, Any]:
    return {
        key: value
        for key, value in vars(env).items()
        if type(value) in PLAIN_SETTINGS and key not in ("spec", "_np_random", "_np_random_seed")
    }


def _outline(env: Any) -> tuple[str | None, dict[str, Any]]:
    """Return what can be seen of an environment's state: its generator and its plain attributes."""
    plain = _settings(env)
    return generator_text(env), {k: v.hex() if isinstance(v, float) else v for k, v in plain.items()}


def fresh(env: Any) -> Any:
    """Return a newly built environment like `env`, never reset, or None if nobody knows how."""
    if "_ezpickle_args" in vars(env):
        return type(env)(*env._ezpickle_args, **env._ezpickle_kwargs)
    spec = vars(env).get("spec")
    if spec is None:
        return None
    gymnasium: Any = importlib.import_module("gymnasium")
    return gymnasium.make(spec, disable_env_checker=True).unwrapped


class Recorder:
    """Records one base environment. `whole`: from its construction on, not from the last reset."""

    def __init__(self, env: Any, *, whole: bool = False, ceiling: int = CEILING) -> None:
        self.env = env
        self.whole = whole
        self.ceiling = ceiling
        self.unknown = "it was not recorded from a reset on"
        """Why the state cannot be replayed exactly at this moment; empty if it can."""
        self._outgrown = False
        self._tape = Tape(whole=whole)
        self._depth = 0
        self._hooks = (
            Hook(env, "step", self._step, keeper=self),
            Hook(env, "reset", self._reset, keeper=self),
        )

    @property
    def steps(self) -> int:
        """How many steps a restore would replay."""
        return len(self._tape.actions)

    def install(self) -> None:
        """Start recording; rebuild the record of the episode that is under way if that is possible."""
        tape = self._rebuild()
        if tape is not None:
            self._tape, self.unknown = tape, ""
        for hook in self._hooks:
            hook.install()

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    # ------------------------------------------------------------------ recording

    def _step(self, action: Any) -> Any:
        step = self._hooks[0].original
        if self._depth:
            return step(action)  # some environments call step() inside reset()
        if not self.unknown:
            self._record(lambda: self._tape.add(action))
        self._depth += 1
        try:
            result = step(action)
        finally:
            self._depth -= 1
        self._tape.witness.see(*result[:4])
        if not self.unknown and self.steps > self.ceiling:
            self._forget(f"its history is longer than {self.ceiling} steps")
        return result

    def _reset(self, **kwargs: Any) -> Any:
        reset = self._hooks[1].original
        if self._depth:
            return reset(**kwargs)
        if not (self.whole and not self._outgrown and not self.unknown):
            self._tape = Tape()
            self.unknown = ""
        self._record(lambda: self._tape.resets.append(self._reset_of(kwargs)))
        self._depth += 1
        try:
            result = reset(**kwargs)
        finally:
            self._depth -= 1
        self._tape.witness.see(result[0])
        if self.whole and not self._tape.whole:
            self.unknown = "it carries over more from earlier episodes than was recorded"
        return result

    def _reset_of(self, kwargs: dict[str, Any]) -> Reset:
        seed, options = kwargs.get("seed"), kwargs.get("options")
        return Reset(
            at=self.steps,
            seed=None if seed is None else int(seed),
            options=None if options is None else from_json(to_json(options)),  # a copy, and a trial
            generator=None if seed is not None else generator_text(self.env),
            settings=_settings(self.env),
        )

    def _record(self, add: Callable[[], object]) -> None:
        try:
            add()
        except Unrecordable as error:
            self._forget(f"{error} cannot be recorded")

    def _forget(self, why: str) -> None:
        self.unknown = why
        self._outgrown = True
        self._tape = Tape()

    def _rebuild(self) -> Tape | None:
        """Return the tape of an episode that began before the recorder came, if it was only just reset."""
        own = vars(self.env)
        if own.get("_np_random") is None:
            return Tape(whole=self.whole)  # never reset, or it draws nothing: the record begins here
        seed = own.get("_np_random_seed")
        if not isinstance(seed, int) or seed < 0:
            return None
        twin = fresh(self.env)
        if twin is None:
            return None
        try:
            wanted = _outline(self.env)
            tape = Tape(whole=self.whole)
            for attempt in range(EARLIER_RESETS):
                if not self.whole:
                    tape = Tape()
                again = None if attempt == 0 else generator_text(twin)
                tape.resets.append(
                    Reset(
                        at=0, seed=seed if attempt == 0 else None, generator=again, settings=_settings(twin)
                    )
                )
                observation, _ = twin.reset(seed=seed) if attempt == 0 else twin.reset()
                tape.witness.see(observation)
                if _outline(twin) == wanted:
                    return tape
            return None
        except Unrecordable:
            return None
        finally:
            twin.close()

    # ------------------------------------------------------------------ capture and restore

    def write(self) -> tuple[str, Any]:
        """Return the tape as a header and an array of bytes."""
        return self._tape.write(generator_text(self.env))

    def restore(self, recording: Recording, *, approximate: str = "") -> None:
        """Run a recording. Raises RestoreFailed if the environment answers differently.

        `approximate`: why a different answer was to be expected; then it is accepted and logged.
        """
        env, witness = self.env, Witness()
        if recording.whole:
            self._renew()
        step, reset = self._hooks[0].original, self._hooks[1].original
        tape = Tape(whole=recording.whole)
        self._depth += 1
        try:
            done = 0
            for event in (*recording.resets, None):
                until = len(recording.actions) if event is None else event.at
                for action in recording.actions[done:until]:
                    witness.see(*step(action)[:4])
                done = until
                if event is not None:
                    vars(env).update(event.settings)
                    if event.generator is not None:
                        set_generator(env, event.generator)
                    given = {"seed": event.seed, "options": event.options}
                    witness.see(reset(**{k: v for k, v in given.items() if v is not None})[0])
        finally:
            self._depth -= 1
        exact = witness.hexdigest() == recording.digest
        if exact and recording.after is not None:
            exact = generator_text(env) == recording.after
        if not exact and not approximate:
            raise RestoreFailed(
                f"{type(env).__qualname__} answered the recorded actions differently than in the saved run.",
                hint="Resume with the library versions of the checkpoint, or register a capturer for it.",
            )
        if not exact:
            _log.warning("%s is restored approximately: %s.", type(env).__qualname__, approximate)
            if recording.after is not None:
                set_generator(env, recording.after)
        tape.resets, tape.actions, tape.witness = list(recording.resets), list(recording.actions), witness
        self._tape, self.unknown = tape, approximate

    def _renew(self) -> None:
        """Give the environment the insides of a newly built one: its history begins anew."""
        new = fresh(self.env)
        if new is None:
            raise RestoreFailed(
                f"{type(self.env).__qualname__} would have to be built anew, and nobody knows how.",
                hint="Create it through gymnasium.make.",
            )
        kept = {"step", "reset", "spec", "action_space", "observation_space"}
        own = vars(self.env)
        for key in [key for key in own if key not in kept]:
            del own[key]
        own.update({key: value for key, value in vars(new).items() if key not in kept})


class ReplayCaptor:
    """Captor of an environment that carries a recorder."""

    def attributes(self, obj: Any) -> frozenset[str]:
        return frozenset({"action_space", "observation_space"})

    def capture(self, obj: Any, walk: Walk) -> dict[str, Value]:
        recorder = keeper_of(obj, "step")
        assert isinstance(recorder, Recorder)
        if not walk.contents:
            return {"replay": "skeleton"}
        if recorder.unknown:
            walk.note("approximate", f"{type(obj).__qualname__} is replayed: {recorder.unknown}.")
        try:
            header, actions = recorder.write()
        except Unrecordable as error:
            walk.note("approximate", f"{type(obj).__qualname__} cannot be recorded: {error}.")
            return {"replay": "", "unknown": str(error)}
        b, inline = walk.pack(actions)
        return {
            "replay": header,
            "actions": Array(d="|u1", s=(len(actions),), b=b, data=inline),
            "unknown": recorder.unknown,
        }

    def plan(self, extra: dict[str, Value], obj: Any, graft: Graft) -> None:
        recorder = keeper_of(obj, "step")
        assert isinstance(recorder, Recorder)
        header, actions, unknown = extra.get("replay"), extra.get("actions"), extra.get("unknown", "")
        if not isinstance(unknown, str):
            graft.error("says in a way that is no text why it is approximate.")
        elif isinstance(header, str) and not header:
            graft.note_at(
                "<replay>", "lost", f"the episode could not be recorded ({unknown}) and starts anew."
            )
            for follows in ("<actions>", "<unknown>"):
                graft.note_at(follows, "kept", "belongs to the new episode.")
        elif not isinstance(header, str) or not isinstance(actions, Array):
            graft.error("was saved without the actions to replay.")
        else:
            try:
                recording = read(header, np.asarray(graft.bytes_of(actions.b, actions.data)))
            except CorruptObject as error:
                graft.error(str(error))
                return
            graft.write(partial(recorder.restore, recording, approximate=unknown), phase=Phase.WORLD)


_captor = ReplayCaptor()


def _rule(obj: object) -> Captor | None:
    return _captor if isinstance(keeper_of(obj, "step"), Recorder) else None


POLICY = Policy(captors=(_rule,), external=frozenset({"Box2D"}))
