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
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from unbroken.adapters.trackers.places import IN_USE, place_of
from unbroken.capture.process_group import unwrapped
from unbroken.capture.tracked import Tracked
from unbroken.capture.untracked import warn_of_untracked
from unbroken.engine.engine import CheckpointEngine
from unbroken.engine.guards.warm_up import Evaluate, WarmUpTrial
from unbroken.engine.options import Options, settings_of, takes_settings
from unbroken.engine.report import ResumeReport
from unbroken.engine.saying import say
from unbroken.engine.steps import FramedLoop, Steps
from unbroken.engine.trackers.place import Place
from unbroken.engine.world import World, speaks_for_run
from unbroken.errors import ConfigError
from unbroken.state.nodes import PLAIN

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class Run:
    """One training run with a hand-written loop.

    >>> import unbroken
    >>> run = unbroken.Run("runs/example", every=1000)  # doctest: +SKIP
    >>> run.track(policy=net, optimizer=opt, env=env)   # doctest: +SKIP
    >>> for step in run.steps(100_000):                 # doctest: +SKIP
    ...     ...

    `every` is a number of steps, or an `Every`; left out, a kill costs at most 5 minutes of work. The other
    options are those of `Settings`. Of several processes that train together each has its `Run`, with the
    `world` as it sees it (`unbroken.distributed.world()`): all go through the same steps.

    Raises ConfigError where a setting cannot be used. Nothing is opened or written before the first
    step is asked for.
    """

    @takes_settings()
    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        job: str = "",
        world: World | None = None,
        quiet: bool = False,
        **options: Unpack[Options],
    ) -> None:
        self.world = world
        self.settings = settings_of("Run", root, options, job=job)
        self._tracked = Tracked()
        self.vars = self._tracked.vars
        self.report: ResumeReport | None = None
        """How the newest loop started; None before it did."""
        self._counters = self._tracked.counters
        self._quiet = quiet
        self._segments = 0
        self._engine: CheckpointEngine | None = None
        self._steps: weakref.ref[Steps] | None = None
        """What the loop that the engine belongs to iterates over."""
        self._trial: WarmUpTrial | None = None
        self._scratch: list[object] = []
        """What the coming loop does not need back."""
        self._trackers: list[Place] = []
        self._warned: set[str] = set()

    def track(self, **objects: object) -> None:
        """Save and restore these objects, in place: modules, optimizers, schedulers, buffers,
        environments, generators, containers, anything with `state_dict`/`load_state_dict` or
        `capture`/`restore`. Python's, numpy's and PyTorch's global generators are tracked already.

        Raises:
            ConfigError: a name is taken, or a value cannot be changed in place (a number, a string).
        """
        if self._engine is not None:
            raise ConfigError("track() comes before the loop.", hint="Call it before run.steps().")
        self._refuse_both(objects, self._scratch)
        self._tracked.add(objects)

    def scratch(self, *objects: object) -> None:
        """Say of these that the coming loop does not need them back: every iteration writes them before it reads
        them, as the storage of one rollout. They are not saved, and no warning names them.

        It holds for these objects themselves, not for others that they lead to, and for one loop: when that has
        begun, they are let go.

        Raises:
            ConfigError: the loop has begun, one of them is tracked, or one is a plain value (a number, a string).
        """
        if self._engine is not None:
            raise ConfigError("scratch() comes before the loop.", hint="Call it before run.steps().")
        for value in objects:
            if type(value) in PLAIN:
                raise ConfigError(
                    f"A {type(value).__name__} cannot be told from others like it.",
                    hint="Give scratch() the objects that hold it; plain values need no word.",
                )
        self._refuse_both({**self._tracked.objects, **self._variables()}, objects)
        self._scratch.extend(objects)

    def mark_in(self, tracker: object, *, first: Callable[[int], int] | None = None) -> None:
        """Mark checkpoints and restarts in this tracker: a `SummaryWriter`, a run of W&B, an active run of MLflow.

        The last two are found by themselves where the script has begun one. What a writer was given of steps that are
        done again after a restore is voided. Where it counts in other steps than the loop, `first` returns, for a step
        of the loop, the first step that the writer is given from there on: `lambda i: i * 2048 + 1`.

        Raises:
            ConfigError: the loop has begun, or it is no tracker that is known.
        """
        if self._engine is not None:
            raise ConfigError("mark_in() comes before the loop.", hint="Call it before run.steps().")
        self._trackers.append(place_of(tracker, first=first))

    def warm_up(self, function: Evaluate, *, always: bool = False) -> None:
        """Have `function` look at a checkpoint before the run goes on from it: after a fall-back to an older one, with
        `always` at every start that restores one.

        It is called without arguments when everything is restored, may run episodes with what is tracked, and returns
        None, or a sentence that says why the checkpoint is to be rejected; then the next older one is tried. What it
        did is undone before the loop begins. A checkpoint that `resume` names by its step is not tried.

        Raises:
            ConfigError: the loop has begun, or it is no function.
        """
        if self._engine is not None:
            raise ConfigError("warm_up() comes before the loop.", hint="Call it before run.steps().")
        self._trial = WarmUpTrial(function, always=always)

    def _variables(self) -> dict[str, object]:
        return {f"vars.{name}": value for name, value in vars(self.vars).items()}

    def _refuse_both(self, tracked: Mapping[str, object], scratch: Iterable[object]) -> None:
        ends = {id(value) for one in scratch for value in (one, unwrapped(one))}
        for name, value in tracked.items():
            if id(value) in ends or id(unwrapped(value)) in ends:
                raise ConfigError(
                    f"{name} is to be saved, and is named as scratch too.",
                    hint="Leave it out of run.scratch() if it has to come back; do not track it if it need not.",
                )

    def steps(self, total: int) -> Iterator[int]:
        """Iterate over the steps that are left of `total`; what was saved comes back on entering.

        Each further loop of the script is a segment of its own; one that is finished is skipped, with
        its final state restored. Leave a loop early with `stop()`, so that its end is saved too. A loop inside
        an iteration is an ordinary one (`range`): a restore comes back to the top of the outer one. To save in
        the middle of it, make one loop of both: `for step in run.steps(outer * inner)` and
        `divmod(step, inner)`.

        Raises (from the first iteration on): ConfigError, StateMismatch, NoUsableCheckpoint, Untrusted, RunBusy,
        RestoreFailed, SaveFailed; see `unbroken.errors`. Whoever catches SaveFailed may go on with the same
        iterator: it repeats what has failed, and leaves out no step.
        """
        # The caller's frame here and not at the first step: who iterates may be a progress bar around us.
        made: list[weakref.ref[Steps]] = []  # weak, since by it is seen whether somebody still iterates
        loop = FramedLoop(
            sys._getframe(1), begin=lambda frame, total: self._begin(frame, made[0], total), at_top=self._at_top,
            end=self._end, stopped=lambda: self._counters.stopped,
        )  # fmt: skip
        steps = Steps(loop, total)
        made.append(weakref.ref(steps))
        return steps

    def stop(self) -> None:
        """End the loop at the top of its next iteration, for good: a restart does not go on with it.

        Of several ranks every one has to call it in the same iteration; decide it by a number that all have.
        """
        self._counters.stopped = True

    def save(self) -> None:
        """Save at the top of the next iteration. Of several ranks rank 0 decides.

        Raises:
            ConfigError: the loop has not begun, or the ranks have nothing by which they could hear of it.
        """
        if self.world is not None and self.world.size > 1 and self.world.agree is None:
            raise ConfigError(
                "Ranks without a process group save every so many steps and do not hear of a wish.",
                hint="Make one before unbroken.distributed.world(), or give a smaller number of steps.",
            )
        self._running().request_save("requested by the script")

    def wait(self, *, seconds: float = 60.0) -> bool:
        """Wait until what was saved by now is durable, and then, at most so many seconds, until all trackers of experiments
        that are in use have been told of it. Return whether they have.

        Raises:
            ConfigError: no loop is going on. SaveFailed, Fenced, AmbiguousCommit: the newest save was not written.
        """
        return self._running().wait_for_marks(seconds)

    def record(self, *, episodes: int = 0, **metrics: float) -> None:
        """Count finished episodes and keep the latest value of each metric for the next checkpoint."""
        self._counters.record(episodes, metrics)

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
            begun = self.report is not None
            raise ConfigError(
                f"The loop {'is over and its end is saved' if begun else 'has not begun'}.",
                hint="Call it inside a loop over run.steps(). Its start and its end are saved by themselves.",
            )
        return self._engine

    def _begin(self, frame: FrameType, steps: weakref.ref[Steps], total: int) -> int:
        if self._engine is not None and self._steps is not None and self._steps() is not None:
            # Neither loop is touched: who catches this goes on with the outer one.
            raise ConfigError(
                "A loop over run.steps() is still going on, and no other one can begin inside it.",
                hint="Use range() for the inner loop; or one loop over run.steps(outer * inner) and"
                " divmod(step, inner), which saves inside it too.",
            )
        if self._engine is not None:
            # Nobody saw the end of that loop, and by now the script has moved on: a checkpoint of it would
            # have what came after, twice. It is not over, so who catches this begins no other one.
            self._segments -= 1
            self.close()
            raise ConfigError(
                "The loop before this one was left by `break` or by an error, so its end is in no checkpoint.",
                hint="Leave it by run.stop(), which ends it at the top of its next iteration. After an error begin"
                " that loop anew: it goes on from its newest checkpoint.",
            )
        self._refuse_both(self._variables(), self._scratch)  # which may have been set since
        self._counters.stopped = False
        # By what is tracked, and not by this object, which leads to what is scratch.
        warn_of_untracked(
            frame, [self._tracked, *self._tracked.objects.values()], self._warned, self._scratch
        )
        source = self._tracked.source()
        source.scratch = self._scratch
        engine = CheckpointEngine(
            source, self.settings, segment=self._segments, world=source.among(self.world), finders=IN_USE,
            trial=None if self._trial is None else self._trial.anew(),
        )  # fmt: skip
        for place in self._trackers:
            engine.tell(place)
        report = engine.resume()
        self.report = report if self._counters.stopped else report.towards(total)
        self._scratch = []
        self._segments += 1
        self._engine = engine
        self._steps = steps
        if not self._quiet and speaks_for_run(self.world):
            say(self.report.text)
        return self.report.step

    def _at_top(self, step: int) -> None:
        self._counters.save_if_due(self._running(), step)

    def _end(self, step: int) -> None:
        engine = self._running()
        assert self.report is not None
        self._counters.save_end(engine, self.report, step)
        self.close()
