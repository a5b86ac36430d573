"""The three-way oracle: one cell in fresh processes.

U is undisturbed: it saves at its start and its end only. R is killed by SIGKILL at a drawn step, and resumed
in another interpreter with another hash seed. C is R, resumed with a named part left cold. A cell that is claimed to
be exact holds where R ends as U does, bit for bit, and C does not: weights, optimizers, what every generator draws
next, what the environment does next, and every leaf of the two final checkpoints, but for wall-clock times.

A cell that is claimed to be less holds where the checkpoint says so for the reason that the cell names, and R, which
went on from a checkpoint, does end otherwise than U: a reservation about what is exact proves nothing. One that is
claimed to be refused holds where the checkpoint says that it is not exact, and the start that was to go on ends with
an error of ours. Neither has a C.

Not promised: that a cell that holds at one kill holds at all. Another seed draws other moments.
"""

from __future__ import annotations

import random
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from exactness.cell import Cell
from exactness.forked import Ended, Forking
from exactness.records import Row
from exactness.training import JOB, NEVER, ROOT, Finding, Order
from unbroken.capture.volatile import without_clocks
from unbroken.repo.repository import Repository
from unbroken.report.environments import COMPONENT, environments
from unbroken.report.tree import leaves
from unbroken.state.diff import compare
from unbroken.state.snapshot import Snapshot
from unbroken.types import Fidelity

HERE = Path(__file__).parent.parent
UNUSED = re.compile(r"/(?:single)?_?observation_space(?:/spaces/\w+)?/_np_random(?:/|\Z)")
"""Generators of observation spaces. Each is seeded by the system's entropy when the space is made; only SB3's CNN ever
draws one observation, when it is built."""
SHOWN = 3


class Broken(Exception):
    """A process did not end as it had to."""


class Runner:
    """Another interpreter that runs trainings in children of its own. See `runner`."""

    def __init__(self, hash_seed: int) -> None:
        environment = {"PYTHONHASHSEED": str(hash_seed), "SDL_VIDEODRIVER": "dummy", "TQDM_DISABLE": "1"}
        self._process = Forking("-m", "exactness.runner", environment=environment)

    def run(self, order: Order) -> int:
        """Carry out an order; return the exit status of the process that did it."""
        try:
            return self._process.run(msgspec.json.encode(order).decode())
        except Ended as ended:
            raise Broken(str(ended)) from ended

    def close(self) -> None:
        self._process.close()


class Oracle:
    """Puts cells to the proof, with two interpreters that live as long as it does.

    `cells` is the module whose `BY_KEY` has them: processes find a cell by its key.
    """

    def __init__(self, folder: Path, *, seed: int = 7, cells: str = "exactness.matrix") -> None:
        self._folder = folder
        self._seed = seed
        self._cells = cells
        self._first = Runner(1)
        self._second = Runner(2)

    def close(self) -> None:
        self._first.close()
        self._second.close()

    def prove(self, cell: Cell) -> Row:
        """Run a cell; whatever happens, there is a row that says it."""
        began = time.monotonic()
        folder = self._folder / cell.key.replace("/", "-").replace(" ", "-")
        folder.mkdir(parents=True)
        proof = _Proof(cell, folder, (self._first, self._second), seed=self._seed, cells=self._cells)
        row = proof.row
        try:
            proof.carry_out()
        except Broken as error:
            row.holds, row.reason = False, f"{error}; {proof.last_words()}"
        row.seconds = time.monotonic() - began
        if row.holds:
            shutil.rmtree(folder, ignore_errors=True)
        return row


class _Proof:
    """All runs of a cell work in one folder, one after the other: its path is no difference between them."""

    def __init__(
        self,
        cell: Cell,
        folder: Path,
        runners: tuple[Runner, Runner],
        *,
        seed: int,
        cells: str,
    ) -> None:
        self.cell = cell
        self.cells = cells
        self.folder = folder
        self.first, self.second = runners
        self.seed = seed
        self.log = folder / "log"
        self.row = Row(
            key=cell.key,
            group=cell.group,
            algorithm=cell.algorithm,
            environment=cell.environment,
            around=cell.around,
            claim=cell.claim,
            holds=False,
            cold=", ".join(cell.cold) if cell.claim == "exact" else "",
        )

    def carry_out(self) -> None:
        row = self.row
        undisturbed = self.run(self.first, every=NEVER)
        row.ways = ways(self.log.read_text(errors="replace"))
        self.aside("U")
        row.steps = undisturbed.calls
        row.killed = moment(self.cell, row.steps, seed=self.seed)
        every = self.cell.every or max(1, min(row.steps // 9, row.killed - 1))
        self.run_killed(every=every, kill=row.killed)
        if row.claim == "refused":
            self.refuse(every=every)
            return
        if row.claim == "exact":
            shutil.copytree(self.folder / "now", self.folder / "cold", symlinks=True)
        resumed = self.run(self.second, every=every)
        row.resumed = resumed_at(self.folder / "now" / ROOT)
        self.aside("R")
        expected, found = (final(self.folder / name / ROOT) for name in "UR")
        row.leaves = sum(1 for component in expected.components.values() for _ in leaves(component))
        row.ways = row.ways or ways_in(found)
        apart = unequal(undisturbed, resumed) + [str(leaf) for leaf in differences(expected, found)]
        inexact = inexact_parts(found)
        wrong = [] if row.resumed > 0 else ["nothing was restored"]
        if row.claim == "exact":
            wrong += [f"promised less than exact: {inexact}"] if inexact else []
            wrong += apart
            wrong += self.unnoticed(undisturbed, expected, every=every)
        else:
            wrong += self.undeserved(inexact, apart)
        row.holds, row.reason = not wrong, shortened(wrong)
        if row.holds:
            row.reason = inexact

    def unnoticed(self, undisturbed: Finding, expected: Snapshot, *, every: int) -> list[str]:
        """Resume once more with a part left cold; say so if nothing shows it."""
        (self.folder / "cold").rename(self.folder / "now")
        forgot = self.run(self.second, every=every, cold=self.cell.cold)
        self.aside("C")
        if forgot.weights != undisturbed.weights:
            return []
        if self.cell.cold_in == "state" and differences(expected, final(self.folder / "C" / ROOT)):
            return []
        return [f"{self.row.cold} left cold changes nothing, so nothing is proved"]

    def refuse(self, *, every: int) -> None:
        """Start a run again that has said that it is not exact, and must refuse to go on."""
        promised = inexact_parts(newest(self.folder / "now" / ROOT))
        status = self.second.run(self.order(every=every))
        told = self.last_words()
        refused = status == 1 and told.startswith("unbroken.errors.") and self.cell.because in told
        self.row.holds = refused and bool(promised)
        if not status:
            self.row.reason = "it went on"
        elif not promised:
            self.row.reason = f"nothing says that it is not exact, and then: {told}"
        else:
            self.row.reason = told

    def undeserved(self, inexact: str, apart: Sequence[str]) -> list[str]:
        """Say why a cell is not rightly claimed to be less than exact."""
        wrong = []
        if not inexact:
            wrong.append("nothing says that it is not exact")
        elif self.cell.because not in inexact or not self.cell.because:
            wrong.append(f"another reason than {self.cell.because!r} is told: {inexact}")
        if not apart:
            wrong.append("it ends as the undisturbed run, so it is exact after all")
        return wrong

    def run(self, runner: Runner, *, every: int, cold: Sequence[str] = ()) -> Finding:
        status = runner.run(self.order(every=every, cold=cold))
        if status:
            raise Broken(f"a run ended with status {status}")
        return msgspec.json.decode((self.folder / "out").read_bytes(), type=Finding)

    def run_killed(self, *, every: int, kill: int) -> None:
        status = self.first.run(self.order(every=every, kill=kill))
        if status != -9:
            raise Broken(f"the run that was to be killed ended with status {status}")

    def order(self, *, every: int, kill: int = 0, cold: Sequence[str] = ()) -> Order:
        work = self.folder / "now"
        work.mkdir(exist_ok=True)
        return Order(
            cells=self.cells, key=self.cell.key, folder=str(work), out=str(self.folder / "out"), log=str(self.log), every=every,
            kill=kill, cold=list(cold),
        )  # fmt: skip

    def aside(self, name: str) -> None:
        (self.folder / "now").rename(self.folder / name)

    def last_words(self) -> str:
        if not self.log.exists():
            return "nothing was said"
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else "nothing was said"


def moment(cell: Cell, steps: int, *, seed: int) -> int:
    """Return the step of the kill, drawn from the seed and the cell's name."""
    low, high = (int(part * steps) for part in cell.window)
    return random.Random(f"{seed}/{cell.key}").randint(low + 1, max(high, low + 1))


def newest(root: Path) -> Snapshot:
    """Return the state in the newest checkpoint of a run."""
    repository = Repository.open(root, JOB)
    return repository.load(repository.commits()[0])


def final(root: Path) -> Snapshot:
    """Return the state at the end of a run."""
    commit = Repository.open(root, JOB).commits()[0]
    if commit.position != "end":
        raise Broken(f"the newest checkpoint in {root} is of a {commit.position}")
    return newest(root)


def resumed_at(root: Path) -> int:
    """Return the step at which the newest start of a run went on; 0 where it began anew."""
    starts = [record for record in Repository.open(root, JOB).history() if record.event == "start"]
    return starts[-1].step


def unequal(one: Finding, other: Finding) -> list[str]:
    """Return in words which weights and draws of two runs differ."""
    return [
        f"{kind} {name} differ"
        for kind, a, b in (("weights", one.weights, other.weights), ("draws", one.draws, other.draws))
        for name in {**a, **b}
        if a.get(name) != b.get(name)
    ]


def differences(one: Snapshot, other: Snapshot) -> list[object]:
    """Return the leaves that differ, but for wall-clock times."""
    return [
        leaf
        for leaf in without_clocks(compare(one, other), one, other)
        if not UNUSED.search(f"/{leaf.place}")
    ]


def inexact_parts(snapshot: Snapshot) -> str:
    """Return what a state says of the parts that it does not have exactly; "" where all are."""
    return "; ".join(
        f"{name} {promise.fidelity.value}: {promise.reason}"
        for name, promise in snapshot.promises.items()
        if promise.fidelity is not Fidelity.EXACT
    )


def ways(said: str) -> str:
    """Return by which ways environments are captured, as a training tells it when it starts."""
    told = re.findall(
        r"^unbroken: \S.*: (?:exact|approximate|not captured), by ([^:(\n]+)", said, flags=re.MULTILINE
    )
    return ", ".join(dict.fromkeys(way.strip() for way in told))


def ways_in(snapshot: Snapshot) -> str:
    """Return the same as the state itself tells it, which a hand-written loop's start does not."""
    held = snapshot.components.get(COMPONENT)
    return ", ".join(dict.fromkeys(seen.way for seen in environments(held.roots))) if held is not None else ""


def shortened(wrong: Sequence[str]) -> str:
    more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
    return "; ".join(wrong[:SHOWN]) + more
