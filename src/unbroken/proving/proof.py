"""A proof: one undisturbed run, one that is killed and restarted, and the comparison of their ends.

Invariant: the answer "equal" is given only if every kill happened, at least one restart restored a
checkpoint after step 0, both runs came to their end, their checkpoints hold every part of the state, and nothing
is left behind (`leftovers.py`).
Everything else is an error or another answer, never a pass.

It does not promise that the script is deterministic by itself: one that is not is found different.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from unbroken.capture.volatile import VOLATILE
from unbroken.errors import ConfigError, Unproved
from unbroken.format.records import Commit, HistoryRecord
from unbroken.proving.launch import KillTarget, Launch, Left
from unbroken.proving.leftovers import left_in, not_excused
from unbroken.proving.moments import KillMoment, Trigger, draw_moments
from unbroken.proving.progress import ProgressFile, Reached, last_words
from unbroken.proving.roots import compare_finals, copy_starts, finals, saved_between
from unbroken.proving.workspace import Workspace, tail
from unbroken.repo.repository import Repository, jobs
from unbroken.report.proof import Kill, ProveResult, Resume, Start, restored_steps

LOOK_S = 0.002
"""Time between two looks at the progress of the script."""
PATIENCE = 10.0
LEAST_PATIENCE_S = 120.0
"""Without a limit from the user, one start may take so many times what the undisturbed run took."""


class Observer(Protocol):
    """Who wants to know how a proof is going."""

    def begins(self, what: str, steps: int) -> None:
        """A phase begins; `steps` is how many it will take, 0 if unknown."""
        ...

    def reached(self, step: int) -> None: ...

    def killed(self, kill: Kill) -> None: ...


class Silent:
    """Nobody wants to know."""

    def begins(self, what: str, steps: int) -> None: ...

    def reached(self, step: int) -> None: ...

    def killed(self, kill: Kill) -> None: ...


def prove(
    command: Sequence[str],
    *,
    kills: int = 3,
    seed: int = 7,
    target: KillTarget = "tree",
    timeout: float | None = None,
    keep: Path | None = None,
    cwd: Path | None = None,
    observer: Observer | None = None,
) -> ProveResult:
    """Run `command` undisturbed and killed `kills` times, and compare the two ends leaf by leaf.

    `target`: kill the whole process tree, or the trainer alone. `timeout`: seconds that one start of
    the script may take. `keep`: a new directory for both runs and the script's output, which are
    otherwise deleted unless the proof fails.

    Raises:
        Unproved: the script failed, ended before it was killed often enough, or nothing was restored.
        ConfigError: an argument cannot be used.
    """
    if not command:
        raise ConfigError("There is no command to run.", hint="Write: unbroken prove -- python train.py")
    if kills < 1:
        raise ConfigError("A proof needs at least one kill.", hint="Use --kills 1 or more.")
    if timeout is not None and timeout <= 0:
        raise ConfigError("The timeout must be longer than nothing.", hint="Leave it out for no limit.")
    directory = Path(tempfile.mkdtemp(prefix="unbroken-prove-")) if keep is None else keep.absolute()
    workspace = Workspace(directory)
    workspace.prepare()
    proof = _Proof(tuple(command), workspace, target, timeout, cwd or Path.cwd(), observer or Silent())
    try:
        result = proof.carry_out(kills, seed, kept=keep is not None)
    except Unproved as error:
        workspace.tidy()
        # Kept: the script's output is what the user needs now.
        mine = "" if keep is not None else f"; {directory} is kept for you to look at, and yours to delete"
        error.hint = f"{error.hint} The script's output is in {directory / 'output'}{mine}.".strip()
        raise
    except BaseException:
        if keep is None:
            workspace.remove()
        raise
    if keep is None:
        workspace.remove()
    return result


class _Proof:
    def __init__(
        self,
        command: tuple[str, ...],
        workspace: Workspace,
        target: KillTarget,
        timeout: float | None,
        cwd: Path,
        observer: Observer,
    ) -> None:
        self.command = command
        self.workspace = workspace
        self.target: KillTarget = target
        self.timeout = timeout
        self.cwd = cwd
        self.observer = observer
        self.undisturbed_left = Left()
        self.killed_left: list[Left] = []

    def carry_out(self, kills: int, seed: int, *, kept: bool) -> ProveResult:
        work = self.workspace
        undisturbed_seconds, steps = self.run_undisturbed()
        work.move_root(work.undisturbed)
        moments = draw_moments(kills, seed=seed, steps=steps, seconds=undisturbed_seconds)
        copied = copy_starts(work.undisturbed, work.root)
        patience = self.timeout or max(LEAST_PATIENCE_S, PATIENCE * undisturbed_seconds)
        began = time.monotonic()
        starts = self.run_killed(moments, copied, steps=steps, patience=patience)
        killed_seconds = time.monotonic() - began
        work.tidy()
        self.observer.begins("comparison of the two ends", 0)
        return ProveResult(
            command=self.command,
            target=self.target,
            seed=seed,
            steps=steps,
            undisturbed_seconds=undisturbed_seconds,
            killed_seconds=killed_seconds,
            starts=tuple(starts),
            finals=compare_finals(work.undisturbed, work.killed),
            left_out=tuple(str(leaf) for leaf in VOLATILE),
            left_behind=(
                *(f"undisturbed run: {found}" for found in left_in(work.undisturbed)),
                *(f"killed run: {found}" for found in left_in(work.killed)),
                *self.left_by_kills(),
            ),
            directory=work.directory if kept else None,
        )

    def run_undisturbed(self) -> tuple[float, int]:
        """Run the script to its end; return how long it took and how many steps it made."""
        self.observer.begins("undisturbed run", 0)
        began = time.monotonic()
        with self.launch("undisturbed") as process:
            furthest = self.watch(process, None, self.timeout)
            seconds = time.monotonic() - began
            process.leave()
            self.check_exit(process, "undisturbed run")
            self.undisturbed_left = process.left()
        root = self.workspace.root
        if not jobs(root):
            raise Unproved(
                "The script wrote no checkpoint.",
                hint="Give it a CheckpointCallback or an unbroken.Run; UNBROKEN_ROOT says where they write.",
                log=tail(process.err),
            )
        ends = finals(root)
        if not ends:
            raise Unproved(
                "The script ended without its final checkpoint, so there is nothing to compare.",
                hint="The run must come to its end, or be closed.",
                log=tail(process.err),
            )
        steps = max(commit.step for commit in ends.values())
        if not (saved_between(root) or (furthest is not None and 0 < furthest.committed < steps)):
            raise Unproved(
                f"The script saved nothing between its start and its end at step {steps}: "
                "a restart would have nothing to restore.",
                hint="Save more often, for example with UNBROKEN_EVERY=steps=1000, or train longer.",
            )
        return seconds, steps

    def run_killed(
        self, moments: Sequence[KillMoment], copied: dict[str, Commit], *, steps: int, patience: float
    ) -> list[Start]:
        """Run the script again and again until it has been killed at every moment and has ended."""
        self.observer.begins("killed run", steps)
        starts: list[Start] = []
        seen: dict[str, int] = {}
        left_behind: list[Launch] = []
        try:
            for number, moment in enumerate([*moments, None], start=1):
                needs_commit = moment is moments[-1] and all(
                    start.kill is None or start.kill.committed == 0 for start in starts
                )
                trigger = Trigger(moment, needs_commit=needs_commit) if moment is not None else None
                process = self.launch(f"start-{number}")
                left_behind.append(process)
                kill = self.run_start(process, trigger, patience, number)
                if kill is None:
                    self.killed_left += [earlier.left() for earlier in left_behind if not earlier.closed]
                elif self.target == "tree":
                    self.killed_left.append(process.left())
                if self.target == "tree" or kill is None:
                    process.close()
                starts.append(Start(resumes=tuple(self.resumes(copied, seen)), kill=kill))
                if moment is not None and kill is None:
                    done = sum(start.kill is not None for start in starts)
                    raise Unproved(
                        f"The script ended after {done} of {len(moments)} kills.",
                        hint="Use fewer kills, another --seed, or a longer training.",
                    )
        finally:
            for process in left_behind:
                process.close()
        if not restored_steps(starts):
            raise Unproved(
                "No restart restored a checkpoint after step 0, so nothing was proved.",
                hint="Save more often, so that a checkpoint exists before a kill.",
            )
        return starts

    def run_start(
        self, process: Launch, trigger: Trigger | None, patience: float, number: int
    ) -> Kill | None:
        """Let one start run until it is killed or has ended; return the kill."""
        began = time.monotonic()
        reached = self.watch(process, trigger, patience)
        if process.exit_code is None and process.kill(self.target):
            assert reached is not None
            seconds = time.monotonic() - began
            # Read again now that it is dead: this is exactly what it had handed over.
            last = last_words(process.progress) or reached
            kill = Kill(step=reached.step, committed=reached.committed, seconds=seconds, handed=last.handed)
            self.observer.killed(kill)
            return kill
        process.leave()
        self.check_exit(process, f"start {number} of the killed run")
        return None

    def left_by_kills(self) -> list[str]:
        """Return processes and shared memory that are there at the end of the killed run, and not of the other."""
        processes = {command for left in self.killed_left for command in left.processes}
        shared = {path for left in self.killed_left for path in left.shared if Path(path).exists()}
        excused = shared if self.undisturbed_left.shared else set[str]()
        return [
            *(f"process {found}" for found in not_excused(processes, self.undisturbed_left.processes)),
            *(f"shared memory {found}" for found in not_excused(shared, excused)),
        ]

    def launch(self, name: str) -> Launch:
        out, err = self.workspace.output(name)
        return Launch(
            self.command,
            env=self.workspace.environment(name),
            cwd=self.cwd,
            out=out,
            err=err,
            progress=self.workspace.progress(name),
        )

    def watch(self, process: Launch, trigger: Trigger | None, patience: float | None) -> Reached | None:
        """Watch a start until its kill is due or it has ended; return how far it had come."""
        file = ProgressFile(process.progress)
        began = time.monotonic()
        reached: Reached | None = None
        try:
            while not process.wait(LOOK_S):
                now = time.monotonic()
                latest = file.read()
                if latest is not None and latest != reached:
                    reached = latest
                    self.observer.reached(latest.step)
                if trigger is not None and trigger.due(reached, now):
                    return reached
                if patience is not None and now - began > patience:
                    raise Unproved(
                        f"The script did not end within {patience:.0f} seconds.",
                        hint="Give it more time with --timeout.",
                        log=tail(process.err),
                    )
            return file.read() or reached
        finally:
            file.close()

    def resumes(self, copied: dict[str, Commit], seen: dict[str, int]) -> list[Resume]:
        """Return how the runs came back since the last look, from their own history."""
        found: list[Resume] = []
        for job in jobs(self.workspace.root):
            records = [r for r in Repository.open(self.workspace.root, job).history() if r.event == "start"]
            found += [resume_of(record, job, copied.get(job)) for record in records[seen.get(job, 0) :]]
            seen[job] = len(records)
        return found

    def check_exit(self, process: Launch, what: str) -> None:
        code = process.exit_code
        if code:
            how = f"was ended by signal {-code}" if code < 0 else f"failed with exit status {code}"
            raise Unproved(
                f"The script {how} ({what}).",
                log=tail(process.err),
                hint="Run it once by itself and mend what it reports.",
            )


def resume_of(record: HistoryRecord, job: str, copied: Commit | None) -> Resume:
    """Return what a line of history says of a resume. The copied step 0 is no resume."""
    start = 0 if copied is None else copied.sequence
    return Resume(
        job=job,
        tier=record.tier,
        fault=record.fault,
        step=record.step,
        restored=record.sequence > start,
        seconds=record.seconds,
    )
