"""Opens a run for one training: takes its seat, reads what the last process has left, and has the live objects brought
to where the run goes on.

Invariant: what the last process has left is read before this one takes the run over.

Not promised: that the run is open afterwards; whoever asked gives the seat back where that fails.
"""

from __future__ import annotations

from unbroken.engine.clone import Origin, clone
from unbroken.engine.faults import Traces
from unbroken.engine.guards.warm_up import WarmUpTrial
from unbroken.engine.mirroring import Mirroring
from unbroken.engine.recovery import Rebuilder
from unbroken.engine.resume import Resumption
from unbroken.engine.seat import Seat, take_seat
from unbroken.engine.settings import Settings
from unbroken.engine.source import Source
from unbroken.engine.start import await_companion, find_start, tell_refused
from unbroken.engine.traces import read_traces
from unbroken.engine.world import World, speaks_for_run
from unbroken.repo.process import Process
from unbroken.repo.repository import Repository


class Opening:
    """The opening of one segment of one run. First `sit`, then `find`."""

    def __init__(
        self,
        source: Source,
        settings: Settings,
        world: World | None,
        *,
        segment: int,
        rebuilder: Rebuilder | None,
        trial: WarmUpTrial | None,
        process: Process,
    ) -> None:
        self._source = source
        self._settings = settings
        self._world = world
        self._segment = segment
        self._rebuilder = rebuilder
        self._trial = trial
        self._process = process
        self._traces = Traces(known=False)

    def sit(self, repository: Repository) -> Seat:
        """Take the run.

        Raises:
            RunBusy: another process works on it. RankMissing: of several ranks not all are there in time.
        """
        if speaks_for_run(self._world):
            await_companion(repository)
            self._traces = read_traces(repository, self._process)
        return take_seat(repository, self._settings, self._world, self._process)

    def find(
        self,
        repository: Repository,
        run: Seat,
        *,
        origin: Origin | None,
        mirroring: Mirroring | None,
    ) -> Resumption:
        """Bring the live objects to where the run goes on. Raises as `CheckpointEngine.resume` does."""
        if origin is not None:
            return clone(origin, self._source, self._settings, self._world, segment=self._segment)
        return find_start(
            repository, run, self._source, self._settings, self._world,
            segment=self._segment, rebuilder=self._rebuilder, traces=self._traces, trial=self._trial,
            mirroring=mirroring,
        )  # fmt: skip

    def refused(self, run: Seat, error: BaseException, *, time: float) -> None:
        """Keep on record that this start has stopped."""
        tell_refused(run, error, job=self._settings.job, process=self._process, time=time)
