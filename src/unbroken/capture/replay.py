"""Action replay: for simulators whose state can be neither read nor written (Box2D and the like).

A recorder on the live environment keeps what its attributes held before the last reset (as far as they are
values, generators among them), the arguments of that reset, the actions since, and a digest of everything
that came back. A restore runs the same again in the freshly built environment and compares the digest: a
replay that comes out differently is refused, never used. Environments that carry something over from one
episode to the next (BipedalWalker keeps one world for ever) are replayed from their construction, up to a
stated ceiling of steps.

The recorder must see the last reset. It is installed after the first one; that one is rebuilt on a twin
from the seed that the environment remembers and accepted if generator and attributes agree; if not,
the state is approximate until the next reset, and the checkpoint says so: it holds the generator, and the
actions as far as they are known, but no digest, and a restore compares nothing.

What a restore will cost is known from what the recorded resets and steps took; see `replay_cost`.

Not promised: environments that read the clock, threads or the network (the digest refuses them), objects
in attributes that outlive an episode, and attributes that somebody changes from outside in the middle of one.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from unbroken.capture.hooks import Hook, keeper_of
from unbroken.capture.replay_cost import Cost
from unbroken.capture.tape import Recording, Reset, Tape, Witness, generator_state, read, set_generator
from unbroken.capture.values import Unrecordable, from_data, to_data
from unbroken.errors import CorruptObject, RestoreFailed
from unbroken.state.nodes import Array, Bytes, Value
from unbroken.state.policy import Captor, Phase, Policy

if TYPE_CHECKING:
    from unbroken.state.graft import Graft
    from unbroken.state.walk import Walk

CEILING = 50_000
"""Steps of history that are kept and replayed at most; at 0.1 ms a step, a restore of five seconds."""

EARLIER_RESETS = 4
"""So many resets without a step between them are tried when the first episode is rebuilt."""

LARGEST, LARGEST_OF_MANY = 1 << 16, 16
"""Numbers and characters in the largest attribute that is kept with a reset; and where every reset since the
construction is kept. There the others follow from the history."""

PACED, PACED_SECONDS = 8, 0.05
"""Steps of a twin that are timed at most, and after how many seconds no further one is begun."""

_NOT_SETTINGS = frozenset({"spec", "step", "reset", "action_space", "observation_space"})
_SEEDED = frozenset({"_np_random", "_np_random_seed"})
"""What stands in a reset's generator and seed."""


def _settings(env: Any, *, largest: int = LARGEST, leaving: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the attributes of an environment that are values, as data."""
    found: dict[str, Any] = {}
    for name, value in vars(env).items():
        if name in _NOT_SETTINGS or name in leaving:
            continue
        try:
            found[name] = to_data(value, largest=largest)
        except Unrecordable:  # an object, which the reset makes anew: the trial has looked at what it leaves
            continue
    return found


def _put_settings(env: Any, settings: dict[str, Any]) -> None:
    own = vars(env)
    for name, data in settings.items():
        if _is_the_programs(env, name):
            raise CorruptObject(f"A recording has a value for {name} of {type(env).__qualname__}.")
        if data is None and _is_object(own.get(name)):
            continue  # what a reset looks at to take it down: without it the old stays beside the new
        own[name] = from_data(data, own.get(name))


def _is_object(value: Any) -> bool:
    """Whether a value is none that a recording could hold, whatever its size."""
    try:
        to_data(value)
    except Unrecordable:
        return True
    return False


def _is_the_programs(env: Any, name: str) -> bool:
    """Whether a value under this name would stand in the place of code."""
    held = vars(env).get(name, getattr(type(env), name, None))
    return name in _NOT_SETTINGS or name.startswith("__") or callable(held)


def fresh(env: Any) -> Any:
    """Return a newly built environment like `env`, never reset, or None if nobody knows how."""
    if "_ezpickle_args" in vars(env):
        return type(env)(*env._ezpickle_args, **env._ezpickle_kwargs)
    spec = vars(env).get("spec")
    if spec is None:
        return None
    gymnasium: Any = importlib.import_module("gymnasium")
    return gymnasium.make(spec, disable_env_checker=True).unwrapped


def _pace(twin: Any, clock: Callable[[], float]) -> float:
    """Return what a step of a twin takes, in seconds, of the fastest of a few. It is not to be used again."""
    times: list[float] = []
    while len(times) < PACED and sum(times) < PACED_SECONDS:
        action = twin.action_space.sample()
        began = clock()
        ended = twin.step(action)
        times.append(clock() - began)
        if ended[2] or ended[3]:
            break
    return min(times)


class Recorder:
    """Records one base environment. `whole`: from its construction on, not from the last reset."""

    def __init__(
        self,
        env: Any,
        *,
        whole: bool = False,
        ceiling: int = CEILING,
        approximate: str = "",
        prepare: Callable[[Any], None] | None = None,
        paced: bool = False,
        for_journal: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`for_journal`: a checkpoint has the environment by other means, and only a journal has what is recorded
        here. `approximate`: why no replay of it is exact, whatever is recorded; empty if it may be. `prepare`:
        what a wrapper does to the environment before each reset. `paced`: whether the steps of a twin may be
        timed when the recorder is put in, which is for environments that draw from nothing but themselves.
        `clock`: seconds, for what a replay costs."""
        self.env = env
        self.whole = whole
        self.ceiling = ceiling
        self.for_journal = for_journal
        self.beside: Captor | None = None
        """What captures the environment for a checkpoint, where this does it for a journal only."""
        self.approximate = approximate
        self.unknown = "it was not recorded from a reset on"
        """Why the state cannot be replayed exactly at this moment; empty if it can."""
        self.step_seconds = 0.0
        """What a step took on a twin, 0 if none was timed."""
        self._clock = clock
        self._prepare = prepare
        self._paced = paced
        self._seconds = 0.0
        """What the recorded resets and steps took when they were made."""
        self._outgrown = False
        self._tape = Tape()
        self._depth = 0
        self._hooks = (
            Hook(env, "step", self._step, keeper=self),
            Hook(env, "reset", self._reset, keeper=self),
        )

    @property
    def steps(self) -> int:
        """How many steps a restore would replay."""
        return len(self._tape.actions)

    @property
    def since_construction(self) -> bool:
        """Whether a restore would replay everything since the environment was built."""
        return self._tape.whole

    @property
    def inexact(self) -> str:
        """Why a restore of this moment would be approximate; empty if it is exact."""
        return self.unknown or self.approximate

    def cost(self) -> Cost:
        """Return what a restore of this moment costs, by what the recorded steps took."""
        if self.for_journal:
            return Cost()  # a restore replays nothing
        avoidable = 0.0 if self.whole else self._seconds
        return Cost(1, self.steps, self._seconds, avoidable)

    def interrupted(self) -> None:
        """Take note that the environment was restored by other means: the next reset is awaited."""
        self._forget("it was restored in the middle of an episode, and recording goes on with its next reset")

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

    def _step(self, action: Any) -> Any:
        step = self._hooks[0].original
        if self._depth:
            return step(action)  # some environments call step() inside reset()
        if self._tape.resets or not self.unknown:
            self._record(lambda: self._tape.add(action))
        self._depth += 1
        began = self._clock()
        try:
            result = step(action)
        finally:
            self._depth -= 1
        self._seconds += self._clock() - began
        self._tape.witness.see(*result[:4])
        if self.steps > self.ceiling:
            self._forget(f"its history is longer than {self.ceiling} steps")
        return result

    def _reset(self, **kwargs: Any) -> Any:
        reset = self._hooks[1].original
        if self._depth:
            return reset(**kwargs)
        if not (self.whole and not self._outgrown and not self.unknown):
            self._tape, self._seconds = Tape(), 0.0
            self.unknown = ""
        self._record(lambda: self._tape.resets.append(self._reset_of(kwargs)))
        self._depth += 1
        began = self._clock()
        try:
            result = reset(**kwargs)
        finally:
            self._depth -= 1
        self._seconds += self._clock() - began
        self._tape.witness.see(result[0])
        if self.whole and not self._tape.whole:
            self.unknown = "it carries over more from earlier episodes than was recorded"
        return result

    def _reset_of(self, kwargs: dict[str, Any]) -> Reset:
        seed, options = kwargs.get("seed"), kwargs.get("options")
        if seed is None:
            with suppress(Exception):  # an environment without one, or with another idea of it
                # Made on first use, from the entropy of the system: after the reset nobody could say from what.
                self.env.np_random  # noqa: B018
        return Reset(
            at=self.steps,
            seed=None if seed is None else int(seed),
            options=None if options is None else to_data(options),
            generator=None if seed is not None else generator_state(self.env),
            settings=self._before_reset(self.env),
        )

    def _before_reset(self, env: Any) -> dict[str, Any]:
        return _settings(env, largest=LARGEST_OF_MANY if self.whole else LARGEST, leaving=_SEEDED)

    def _record(self, add: Callable[[], object]) -> None:
        try:
            add()
        except Unrecordable as error:
            self._forget(f"{error} cannot be recorded")

    def _forget(self, why: str) -> None:
        self.unknown = why
        self._outgrown = True
        self._tape, self._seconds = Tape(), 0.0

    def _rebuild(self) -> Tape | None:
        """Return the tape of an episode that began before the recorder came, if it was only just reset."""
        own = vars(self.env)
        if own.get("_np_random") is None:
            return Tape(whole=self.whole)  # never reset, or it draws nothing: the record begins here
        seed = own.get("_np_random_seed")
        if not isinstance(seed, int) or seed < 0:
            return None
        try:
            twin = fresh(self.env)
        except Exception:  # noqa: BLE001 - a constructor may raise anything; then the next reset is awaited
            return None
        if twin is None:
            return None
        try:
            wanted = _settings(self.env)
            tape = Tape(whole=self.whole)
            for attempt in range(EARLIER_RESETS):
                if not self.whole:
                    tape = Tape()
                if self._prepare is not None:
                    self._prepare(twin)
                again = None if attempt == 0 else generator_state(twin)
                first = seed if attempt == 0 else None
                tape.resets.append(
                    Reset(at=0, seed=first, generator=again, settings=self._before_reset(twin))
                )
                observation, _ = twin.reset(seed=seed) if attempt == 0 else twin.reset()
                tape.witness.see(observation)
                if _settings(twin) == wanted:
                    self.step_seconds = _pace(twin, self._clock) if self._paced else 0.0
                    return tape
            return None
        except Unrecordable:
            return None
        finally:
            twin.close()

    def write(self) -> tuple[str, Any]:
        """Return the tape as a header and an array of bytes."""
        return self._tape.write(generator_state(self.env), exact=not self.inexact)

    def restore(self, recording: Recording, *, approximate: str = "") -> None:
        """Run a recording. Raises RestoreFailed if the environment answers differently.

        `approximate`: why the state behind the recording is another one; then nothing is compared.
        """
        env, witness = self.env, Witness()
        began = self._clock()
        if recording.whole:
            self._renew()
        step, reset = self._hooks[0].original, self._hooks[1].original
        self._depth += 1
        try:
            done = 0
            for event in (*recording.resets, None):
                until = len(recording.actions) if event is None else event.at
                for action in recording.actions[done:until]:
                    witness.see(*step(action)[:4])
                done = until
                if event is not None:
                    if self._prepare is not None:
                        self._prepare(env)  # before the values, which were recorded after it
                    _put_settings(env, event.settings)
                    if event.generator is not None:
                        set_generator(env, event.generator)
                    options = None if event.options is None else from_data(event.options)
                    given = {"seed": event.seed, "options": options}
                    witness.see(reset(**{k: v for k, v in given.items() if v is not None})[0])
        finally:
            self._depth -= 1
        if recording.digest:
            self._check(recording, witness)
        elif recording.after is not None:
            set_generator(env, recording.after)
        resets, actions = list(recording.resets), list(recording.actions)
        self._tape = Tape(whole=recording.whole, resets=resets, actions=actions, witness=witness)
        self._seconds = self._clock() - began
        self.unknown = approximate

    def _check(self, recording: Recording, witness: Witness) -> None:
        name = type(self.env).__qualname__
        if witness.hexdigest() != recording.digest:
            raise RestoreFailed(
                f"{name} answered the {len(recording.actions)} recorded actions differently than in the saved"
                " run.",
                hint="Either its code or its libraries have changed since the checkpoint (resume with those"
                " of the checkpoint), or it depends on something that is not recorded, such as a clock, a"
                " file or a generator outside of it (register a capturer for it with"
                " register_env_capturer, and start anew).",
            )
        if recording.after is not None and generator_state(self.env) != recording.after:
            raise RestoreFailed(
                f"{name} answered the recorded actions as in the saved run, and its generator stands elsewhere.",
                hint="Something beside its steps draws from its generator: give that one of its own.",
            )

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
        if recorder.inexact:
            walk.note("approximate", f"{type(obj).__qualname__} is replayed: {recorder.inexact}.")
        try:
            header, actions = recorder.write()
        except Unrecordable as error:
            walk.note("approximate", f"{type(obj).__qualname__} cannot be recorded: {error}.")
            return {"replay": None, "unknown": str(error), "whole": recorder.since_construction}
        b, inline = walk.pack(actions)
        at, text = walk.pack(np.frombuffer(header.encode(), np.uint8))
        return {
            # As bytes, since it is for nobody to read: a difference in it is said by where it stands.
            "replay": Bytes(b=at, v=text),
            "actions": Array(d="|u1", s=(len(actions),), b=b, data=inline),
            "unknown": recorder.unknown,
            "whole": recorder.since_construction,
        }

    def plan(self, extra: dict[str, Value], obj: Any, graft: Graft) -> None:
        recorder = keeper_of(obj, "step")
        assert isinstance(recorder, Recorder)
        header, actions, unknown = extra.get("replay"), extra.get("actions"), extra.get("unknown", "")
        if not isinstance(unknown, str):
            graft.error("says in a way that is no text why it is approximate.")
        elif header is None and "replay" in extra:
            graft.note_at(
                "<replay>", "lost", f"the episode could not be recorded ({unknown}) and starts anew."
            )
            for follows in ("<actions>", "<unknown>", "<whole>"):
                graft.note_at(follows, "kept", "belongs to the new episode.")
        elif not isinstance(header, Bytes) or not isinstance(actions, Array):
            graft.error("was saved without the actions to replay.")
        else:
            text = np.asarray(graft.bytes_of(header.b, header.v)).tobytes()
            try:
                recording = read(text.decode(), np.asarray(graft.bytes_of(actions.b, actions.data)))
            except (CorruptObject, UnicodeDecodeError) as error:
                graft.error(str(error))
                return
            for name in sorted({name for event in recording.resets for name in event.settings}):
                if _is_the_programs(obj, name):
                    graft.error(f"was saved with a value for {name}, which is the program's own.")
            graft.write(partial(recorder.restore, recording, approximate=unknown), phase=Phase.WORLD)


class AllBut(frozenset[str]):
    """Every name but those in it."""

    def __contains__(self, name: object) -> bool:
        return not super().__contains__(name)


_ALL_BUT_HOOKS = AllBut({"step", "reset"})


class Beside:
    """Captor of an environment with a recorder that only a journal looks at: as without it."""

    def __init__(self, inner: Captor | None) -> None:
        self._inner = inner

    def attributes(self, obj: Any) -> frozenset[str]:
        found = None if self._inner is None else self._inner.attributes(obj)
        return _ALL_BUT_HOOKS if found is None else found

    def capture(self, obj: Any, walk: Walk) -> dict[str, Value]:
        return {} if self._inner is None else self._inner.capture(obj, walk)

    def plan(self, extra: dict[str, Value], obj: Any, graft: Graft) -> None:
        if self._inner is None:
            graft.error(
                f"{type(obj).__qualname__} was saved with {', '.join(extra)}, which nothing restores."
            )
        else:
            self._inner.plan(extra, obj, graft)


_captor = ReplayCaptor()


def rule(obj: object) -> Captor | None:
    """Return the captor of an environment that carries a recorder."""
    recorder = keeper_of(obj, "step")
    if not isinstance(recorder, Recorder):
        return None
    return Beside(recorder.beside) if recorder.for_journal else _captor


def _journal_rule(obj: object) -> Captor | None:
    return _captor if isinstance(keeper_of(obj, "step"), Recorder) else None


JOURNAL_POLICY = Policy(captors=(_journal_rule,))
"""Under this, environments with a recorder for the journal are captured by it, too."""

POLICY = Policy(captors=(rule,), external=frozenset({"Box2D"}))
