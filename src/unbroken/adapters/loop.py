"""`Run`: exact checkpoints for a training loop that a person writes.

The top of an iteration is the clean point: nothing but the tracked objects, `run.vars` and the global
generators carries over from one iteration to the next, so a kill at any step and a start of the same
script give what the undisturbed run would have given.

Not promised: local variables of the loop. Python gives nobody a way to set them; keep in `run.vars`
what has to come back. What looks forgotten is named when the loop starts.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sized
from functools import reduce
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from unbroken.adapters.delegate import delegate_of
from unbroken.adapters.untracked import UntrackedWarning, untracked
from unbroken.capture.environments import Verdict, attach, chain
from unbroken.capture.generators import GlobalGenerators
from unbroken.capture.probe import probe
from unbroken.capture.rings import ring_of
from unbroken.capture.source import ENVIRONMENTS, GraftSource, policy_of_loaded
from unbroken.engine import changes
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.report import ResumeReport
from unbroken.engine.schedule import DEFAULT_EVERY, Every
from unbroken.engine.settings import Resume, Settings, WorstTier, WriterKind
from unbroken.errors import ConfigError
from unbroken.format.manifest import DocumentFormat
from unbroken.repo.retention import Best
from unbroken.state.lookup import Kind, lookup
from unbroken.state.nodes import PLAIN, class_name
from unbroken.state.policy import Codec, Policy
from unbroken.state.snapshot import Promise
from unbroken.types import Fidelity, worse

if TYPE_CHECKING:
    from typing_extensions import Self

RESERVED = ("vars", "counters", "generators")


class Variables:
    """Attributes that come back: `run.vars.obs = obs`."""

    if TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:  # only for names that are not set
        raise AttributeError(f"run.vars.{name} was never set; set it before the loop begins.")


class Counters:
    """What a run counts by itself."""

    def __init__(self) -> None:
        self.episodes = 0
        self.metrics: dict[str, float] = {}
        self.stopped = False


class Run:
    """One training run with a hand-written loop.

    >>> import unbroken
    >>> run = unbroken.Run("runs/example", every=1000)  # doctest: +SKIP
    >>> run.track(policy=net, optimizer=opt, env=env)   # doctest: +SKIP
    >>> for step in run.steps(100_000):                 # doctest: +SKIP
    ...     ...

    `every` is a number of steps, or an `Every`; left out, a kill costs at most 5 minutes of work. The other
    options are those of `Settings`.

    Raises ConfigError where a setting cannot be used. Nothing is opened or written before the first
    step is asked for.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        job: str = "",
        every: Every | int = DEFAULT_EVERY,
        keep_last: int = 5,
        best: Best | None = None,
        keep_first: bool = False,
        resume: Resume = "auto",
        worst_tier: WorstTier = "rebuilt",
        strict: bool = False,
        allow_changed: Collection[str] = (),
        trust: bool = False,
        document_format: DocumentFormat = "json",
        staging: int | None = None,
        writer: WriterKind = "thread",
        quiet: bool = False,
    ) -> None:
        self.settings = Settings(
            root=root,
            job=job,
            every=every,
            keep_last=keep_last,
            best=best,
            keep_first=keep_first,
            resume=resume,
            worst_tier=worst_tier,
            strict=strict,
            allow_changed=allow_changed,
            trust=trust,
            document_format=document_format,
            staging=staging,
            writer=writer,
        )
        self.vars = Variables()
        self.report: ResumeReport | None = None
        """How the newest loop started; None before it did."""
        self._counters = Counters()
        self._generators = GlobalGenerators()
        self._tracked: dict[str, object] = {}
        self._quiet = quiet
        self._segments = 0
        self._engine: CheckpointEngine | None = None
        self._warned: set[str] = set()
        self._attached: dict[str, Verdict] = {}
        self._kinds: dict[str, Verdict] = {}

    def track(self, **objects: object) -> None:
        """Save and restore these objects, in place: modules, optimizers, schedulers, buffers,
        environments, generators, containers, anything with `state_dict`/`load_state_dict` or
        `capture`/`restore`. Python's, numpy's and PyTorch's global generators are tracked already.

        Raises:
            ConfigError: a name is taken, or a value cannot be changed in place (a number, a string).
        """
        if self._engine is not None:
            raise ConfigError("track() comes before the loop.", hint="Call it before run.steps().")
        for name, value in objects.items():
            if name in RESERVED or name in self._tracked:
                raise ConfigError(f"{name!r} is tracked already.", hint="Choose another name.")
            if type(value) in PLAIN or isinstance(value, (tuple, frozenset, bytes)):
                raise ConfigError(
                    f"{name} is a {type(value).__name__}, which cannot be changed in place.",
                    hint=f"Keep it in run.vars.{name}.",
                )
            self._tracked[name] = value

    def steps(self, total: int) -> Iterator[int]:
        """Iterate over the steps that are left of `total`; what was saved comes back on entering.

        Each further loop of the script is a segment of its own; one that is finished is skipped, with
        its final state restored. Leave a loop early with `stop()`, so that its end is saved too.

        Raises (from the first iteration on): StateMismatch, NoUsableCheckpoint, Untrusted, RunBusy,
        RestoreFailed, SaveFailed; see `unbroken.errors`. Whoever catches SaveFailed may go on with the same
        iterator: it repeats what has failed, and leaves out no step.
        """
        given: object = total
        if isinstance(given, bool) or not isinstance(given, int) or given < 0:
            raise ConfigError(
                f"The number of steps must be a whole number, not {given!r}.",
                hint="Give the number of steps of the whole run, over every start.",
            )
        # Here and not at the first step: who iterates may be a progress bar around us.
        return _Steps(self, total, sys._getframe(1))

    def stop(self) -> None:
        """End the loop at the top of its next iteration, for good: a restart does not go on with it."""
        self._counters.stopped = True

    def save(self) -> None:
        """Save at the top of the next iteration."""
        self._running().request_save("requested by the script")

    def record(self, *, episodes: int = 0, **metrics: float) -> None:
        """Count finished episodes and keep the latest value of each metric for the next checkpoint."""
        self._counters.episodes += episodes
        self._counters.metrics.update({name: float(value) for name, value in metrics.items()})

    @property
    def episodes(self) -> int:
        """How many episodes were recorded, over all processes of the run."""
        return self._counters.episodes

    def close(self) -> None:
        """Wait for the last save and give the run back. At the end of a loop this happens by itself.

        Raises:
            SaveFailed: the last checkpoint could not be written.
        """
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.__exit__(kind, error, trace)

    def _running(self) -> CheckpointEngine:
        if self._engine is None:
            raise ConfigError("The loop has not begun.", hint="Iterate over run.steps() first.")
        return self._engine

    def _begin(self, frame: FrameType) -> int:
        if self._engine is not None:
            # Nobody saw the end of that loop, and by now the script has moved on: a checkpoint of it would
            # have what came after, twice. It is not over, so who catches this begins no other one.
            self._segments -= 1
            self.close()
            raise ConfigError(
                "The loop before this one was left by `break`, so its end is in no checkpoint.",
                hint="Leave it by run.stop(), which ends it at the top of its next iteration.",
            )
        self._counters.stopped = False
        self._name_untracked(frame)
        engine = CheckpointEngine(self._source(), self.settings, segment=self._segments)
        self.report = engine.resume()
        self._segments += 1
        self._engine = engine
        if not self._quiet:
            sys.stderr.write(self.report.text + "\n")
        return self.report.step

    def _done(self, step: int, total: int) -> bool:
        return step >= total or self._counters.stopped

    def _save_end(self, step: int) -> None:
        engine = self._running()
        assert self.report is not None
        if self.report.finished and self.report.step == step:
            return  # it was over when this process came
        engine.save(
            step,
            reason="end of training",
            position="end",
            episodes=self._counters.episodes,
            metrics=self._counters.metrics,
        )

    def _source(self) -> GraftSource:
        roots: dict[str, object] = {
            **self._tracked,
            "vars": self.vars,
            "counters": self._counters,
            "generators": self._generators,
        }
        return _LoopSource(roots, self._policy(), facts=self._facts, promises=self._watch_environments())

    def _watch_environments(self) -> dict[str, Promise]:
        """Put in place what the capture of the tracked environments needs, and return what it promises.

        One of no known family is built twice in another process and tried out; that takes seconds.
        """
        if "gymnasium" not in sys.modules:
            return {}
        core: Any = sys.modules["gymnasium"]
        promise = Promise(Fidelity.EXACT)
        for name, value in self._tracked.items():
            if not isinstance(value, (core.Env, core.vector.VectorEnv)):
                continue
            if name not in self._attached:
                self._attached[name] = self._attach(value)
            verdict = self._attached[name]
            promise = worse(promise, Promise(verdict.fidelity, f"{name}: {verdict.reason}"))
        return {ENVIRONMENTS: promise} if self._attached else {}

    def _attach(self, env: Any) -> Verdict:
        """Return the worst verdict on the members of a vector, each looked at by its own kind; of a single
        environment the verdict on it."""
        members = next((inner for layer in chain(env) if (inner := vars(layer).get("envs"))), None)
        if members is None:
            # A vector without members in this process cannot be tried out; what it is, its class tells.
            known = self._probed(env) if isinstance(env, sys.modules["gymnasium"].Env) else None
            return attach(env, verdict=known).verdict
        found = [attach(member, verdict=self._probed(member)).verdict for member in members]
        return reduce(worse, found)

    def _probed(self, env: Any) -> Verdict:
        kind = "/".join(class_name(type(layer)) for layer in chain(env))
        if kind not in self._kinds:
            self._kinds[kind] = probe(env)
        return self._kinds[kind]

    def _policy(self) -> Policy:
        loaded = policy_of_loaded()
        memory = lookup(loaded)
        codecs: dict[str, Codec] = {}
        components: dict[str, str] = {}
        keys: dict[str, str] = {}
        for name, value in self._tracked.items():
            facts = memory.facts(type(value))
            if facts.structural and name.startswith("target"):
                keys[name] = "target_weights"
            if facts.structural or facts.component or facts.kind not in (Kind.OBJECT, Kind.OPAQUE):
                continue
            delegate = delegate_of(value)
            if delegate is not None:
                codecs[class_name(type(value))] = delegate
            if facts.kind is Kind.OBJECT and _is_buffer(name, value):
                components[class_name(type(value))] = "replay_buffer"
        return loaded.merged(_gradients(), Policy(codecs=codecs, components=components, component_keys=keys))

    def _facts(self) -> Mapping[str, object]:
        found: dict[str, object] = {"episodes": self._counters.episodes}
        for name, value in self._tracked.items():
            groups = getattr(value, "param_groups", None)
            if groups and "learning_rate" not in found:
                found["learning_rate"] = float(groups[0]["lr"])
            if _is_buffer(name, value) and isinstance(value, Sized):
                found["buffer_rows"] = len(value)
        return found

    def _name_untracked(self, frame: FrameType) -> None:
        names = untracked(frame.f_locals, [self, *self._tracked.values()])
        new = [name for name in names if name not in self._warned]
        if new:
            self._warned.update(new)
            warnings.warn_explicit(
                f"Not in the checkpoint: {', '.join(new)}. If the loop changes them, give them to run.track()"
                " or keep them in run.vars; a resumed run would start them anew.",
                UntrackedWarning,
                frame.f_code.co_filename,
                frame.f_lineno,
                frame.f_globals.get("__name__"),
                frame.f_globals.setdefault("__warningregistry__", {}),
            )


def _gradients() -> Policy:
    """A person's own loop may gather gradients over several iterations."""
    if "torch" not in sys.modules:
        return Policy()
    from unbroken.capture.torch import WITH_GRADIENTS  # imports torch, which this module must not

    return WITH_GRADIENTS


def _is_buffer(name: str, value: object) -> bool:
    return ring_of(value) is not None or "buffer" in f"{name} {type(value).__name__}".lower()


class _LoopSource(GraftSource):
    """What stands in `run.vars` was put there to come back: the checkpoint's value wins."""

    def judge(self, change: changes.Change) -> changes.Verdict:
        if change.place.partition("/")[0] in RESERVED:
            return changes.Verdict.SAVED
        return super().judge(change)


class _Steps(Iterator[int]):
    """The steps of one loop. Restores on the first call; saves at the top of each iteration.

    Invariant: what is done counts only once it is done. A call that raised is repeated by the next one: no
    step is left out, and no loop is over without the checkpoint of its end.
    """

    def __init__(self, run: Run, total: int, frame: FrameType) -> None:
        self._run = run
        self._total = total
        self._frame: FrameType | None = frame
        """Where the loop stands, until it has begun."""
        self._next = 0
        self._ended = False

    def __iter__(self) -> _Steps:
        return self

    def __next__(self) -> int:
        if self._ended:
            raise StopIteration
        run = self._run
        if self._frame is not None:
            self._next = run._begin(self._frame)
            self._frame = None
        step, counters = self._next, run._counters
        if run._done(step, self._total):
            run._save_end(step)
            self._ended = True
            run.close()
            raise StopIteration
        run._running().step(step, episodes=counters.episodes, metrics=counters.metrics)
        self._next = step + 1
        return step
