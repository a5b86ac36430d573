"""Every order in which processes can reach a store: a depth-first search over real code.

Processes are threads of which one runs at a time. At each operation that `Search.visible` names, the one that is
about to carry it out gives the turn back, and the search decides who goes on, and what the store does to the
operation. A schedule is a list of such decisions; the search runs the whole scenario anew for each one that it has
not seen. A point whose store and whose processes have seen the same as at an earlier point has the same future, and
is not followed twice: with no limit on `switches` the search is exhaustive for the scenario.

A process that is paused for ever, or killed, is one that never gets its turn again: all others run to their ends, and
the run is looked at after every single change.

Not promised: orders of operations that are not visible. They happen together with the visible one before them.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from unbroken.errors import ObjectMissing, StoreUnavailable
from unbroken.format import layout
from unbroken.format.buffers import Content, pieces
from unbroken.store.base import Names
from unbroken.store.memory import MemoryStore

T = TypeVar("T")
Body: TypeAlias = "Callable[[Actor], None]"

TURN_SECONDS = 60.0
"""A thread that does not come back within this time is a mistake of the test itself."""


class Abandoned(BaseException):
    """This schedule was seen before, or is over: the threads end."""


class Found(AssertionError):
    """A schedule after which something is wrong."""

    def __init__(self, schedule: Sequence[Decision], error: BaseException) -> None:
        super().__init__(f"{error}\n  " + "\n  ".join(map(str, schedule)))


@dataclass(frozen=True, slots=True)
class Decision:
    """Who goes on, and what happens to its operation.

    `how` is `done`, or a fault: `lost` (carried out, and the answer is lost), `late` (the answer is lost and the
    store carries it out later, or never), `twice` (carried out now, and once more later), `stale` (a listing that
    lacks its last name, if that is the newest). Actor -1 is the network, which carries out now what was late.
    """

    actor: int
    how: str = "done"
    parcel: int = 0
    operation: str = field(default="", compare=False)

    def __str__(self) -> str:
        who = "the network" if self.actor < 0 else f"process {self.actor}"
        return f"{who}: {self.operation} {self.how}"


@dataclass(slots=True)
class Search:
    """What is searched, and how far. `run` counts schedules and points."""

    scenario: Callable[[], tuple[Sequence[Body], Callable[[MemoryStore, bool], None]]]
    """Gives the processes, and what looks at the store after each change (True: all processes are over)."""
    prepared: MemoryStore
    switches: int | None = None
    """So often a process loses its turn although it could go on; None: no limit."""
    faults: int = 0
    kinds: frozenset[str] = frozenset()
    everything: bool = False
    """Whether every operation is visible, not only those on epochs, commits and the low-water mark."""
    deletes: bool = True
    """Whether the scenario deletes. If not, what was created stays as it is, and reading it has only one outcome."""
    limit: int | None = None
    drawn: Sequence[int] | None = None
    """Instead of a search, one schedule: each number chooses among what can be done then."""
    schedules: int = 0
    points: int = 0
    changes: int = 0
    cut_off: bool = False
    _seen: dict[bytes, int] = field(default_factory=dict[bytes, int])

    def run(self) -> Search:
        """Search; what the scenario raises comes out here, with the schedule that led to it as a note."""
        stack: list[tuple[Decision, ...]] = [()]
        while stack:
            if self.limit is not None and self.schedules >= self.limit:
                self.cut_off = True
                return self
            execution = Execution(self, stack.pop())
            self.schedules += 1
            execution.run()
            stack += execution.others
        return self

    def visible(self, key: str) -> bool:
        """Whether the order of operations on this name matters here."""
        return self.everything or key.startswith((layout.EPOCHS, layout.COMMITS, layout.LOW_WATER))

    def is_new(self, state: bytes, left: int) -> bool:
        """Whether this point was not seen yet with as many switches left, or more."""
        if self._seen.get(state, -2) >= left:
            return False
        self._seen[state] = left
        self.points += 1
        return True


class Actor:
    """One process: a store for it, and the thread that it runs in."""

    def __init__(self, execution: Execution, number: int, body: Body) -> None:
        self.number = number
        self.store = Ordered(execution, self)
        self.seen = hashlib.blake2b(digest_size=16)
        self.pending: tuple[str, str] | None = ("begin", "")
        self.over = False
        self.turn = threading.Semaphore(0)
        self.how = "done"
        self._execution = execution
        self._body = body
        self.thread = threading.Thread(target=self._live, daemon=True)

    def _live(self) -> None:
        if not self.turn.acquire(timeout=TURN_SECONDS):
            return
        try:
            if not self._execution.abandoned:
                self._body(self)
        except Abandoned:
            pass
        except BaseException as error:  # noqa: BLE001 - shown by the thread that runs the test
            self._execution.fail(error)
        self.over, self.pending = True, None
        self._execution.is_over(self)


class Execution:
    """One schedule: `prefix` is followed, then whoever has the turn keeps it."""

    def __init__(self, search: Search, prefix: tuple[Decision, ...]) -> None:
        self.others: list[tuple[Decision, ...]] = []
        self.abandoned = False
        self.store = MemoryStore()
        for key in search.prepared.list():
            self.store.put(key, search.prepared.get(key))
        self.newest: dict[str, str] = {}
        self._search = search
        self._prefix = prefix
        self._taken: list[Decision] = []
        self._switches = -1 if search.switches is None else search.switches
        self._faults = search.faults
        self._parcels: list[Callable[[], object]] = []
        self._sent: list[bytes] = []
        self._state = 0
        self._least = 0
        """Of reads between two changes the order makes no difference: only the one by number is followed."""
        self._error: BaseException | None = None
        self._ended = threading.Event()
        bodies, self._look = search.scenario()
        self.actors = [Actor(self, number, body) for number, body in enumerate(bodies)]

    def run(self) -> None:
        for actor in self.actors:
            actor.thread.start()
        self._pass_on(None)
        assert self._ended.wait(TURN_SECONDS), "a thread has not come back"
        for actor in self.actors:
            actor.turn.release()
        for actor in self.actors:
            actor.thread.join(TURN_SECONDS)
        if self._error is None and not self.abandoned:
            try:
                self._look(self.store, True)
            except AssertionError as error:
                self._error = error
        if self._error is not None:
            raise Found(self._taken, self._error) from self._error

    def fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._give_up()

    def is_over(self, actor: Actor) -> None:
        if not self.abandoned:
            self._pass_on(actor)

    def operate(self, actor: Actor, name: str, key: str, carry_out: Callable[[], T]) -> T:
        if self.abandoned:
            raise Abandoned
        how = "done"
        if self._search.visible(key) and (self._search.deletes or name == "list" or not self._digest(key)):
            actor.pending = (name, key)
            self._pass_on(actor)
            how = actor.how
        try:
            done = self._carry_out(actor, how, name, key, carry_out)
        except (ObjectMissing, StoreUnavailable) as error:
            actor.seen.update(f"{name} {key} {type(error).__name__}".encode())
            raise
        told = _essence(key, done) if isinstance(done, bytes) else done
        actor.seen.update(f"{name} {key} {told!r}".encode())
        return done

    def _carry_out(self, actor: Actor, how: str, name: str, key: str, carry_out: Callable[[], T]) -> T:
        if how in ("late", "twice"):
            self._parcels.append(lambda: self._change(name, key, carry_out))
            self._sent.append(f"{actor.number} {name} {key} {how}".encode())
        if how == "late":
            raise StoreUnavailable(f"The store did not answer for {key}.", key=key)
        done = self._change(name, key, carry_out)
        if how == "lost":
            raise StoreUnavailable(f"The store did not answer for {key}.", key=key)
        if how == "stale":
            assert isinstance(done, list)
            return done[:-1] if done[-1:] == [self.newest.get(key)] else done  # type: ignore[return-value]
        return done

    def _change(self, name: str, key: str, carry_out: Callable[[], T]) -> T:
        if name not in ("put", "put_if_absent", "delete"):
            return carry_out()
        before = self._digest(key)
        done = carry_out()
        after = self._digest(key)
        if before != after:
            self._state ^= before ^ after
            if before == 0:
                self.newest[key.rpartition("/")[0]] = key
            if self._search.visible(key):
                self._search.changes += 1
                try:
                    self._look(self.store, False)
                except BaseException as error:
                    self.fail(error)  # at once: the code under test must not go on with it
                    raise Abandoned from error
        return done

    def _digest(self, key: str) -> int:
        try:
            data = self.store.get(key)
        except ObjectMissing:
            return 0
        named = key.encode() + b"\0" + _essence(key, data)
        return int.from_bytes(hashlib.blake2b(named, digest_size=16).digest(), "big")

    def _pass_on(self, actor: Actor | None) -> None:
        """Decide who goes on. Returns when it is `actor`'s turn, or at once where that one is over."""
        try:
            decision = self._decide(actor)
            while decision is not None and decision.actor < 0:
                parcel = self._parcels.pop(decision.parcel)
                self._sent.pop(decision.parcel)
                parcel()
                decision = self._decide(actor)
        except Abandoned:
            self._give_up()
            decision = None
        except BaseException as error:  # noqa: BLE001 - shown by the thread that runs the test
            self.fail(error)
            decision = None
        if decision is None:
            if not self.abandoned:
                self._ended.set()
            if actor is not None and not actor.over:
                raise Abandoned
            return
        chosen = self.actors[decision.actor]
        chosen.how = decision.how
        if chosen is actor:
            return
        chosen.turn.release()
        if actor is not None and not actor.over:
            if not actor.turn.acquire(timeout=TURN_SECONDS):
                raise AssertionError("the turn never came back")
            if self.abandoned:
                raise Abandoned

    def _give_up(self) -> None:
        self.abandoned = True
        self._ended.set()

    def _decide(self, actor: Actor | None) -> Decision | None:
        """Return the next decision; None if there is none to take, because all are over."""
        place = len(self._taken)
        options = list(self._options(actor))
        if not options:
            if all(other.over for other in self.actors):
                return None
            raise Abandoned  # what is left would read what it could have read before: another schedule has it
        if place < len(self._prefix):
            decision = self._prefix[place]
            if decision not in options:
                raise AssertionError(f"the scenario is not determined by its schedule: {decision}")
        elif self._search.drawn is not None:
            drawn = self._search.drawn
            decision = options[drawn[place] % len(options) if place < len(drawn) else 0]
        else:
            if not self._search.is_new(self._point(actor), self._switches):
                raise Abandoned
            decision = options[0]
            taken = tuple(self._taken)
            self.others += [(*taken, option) for option in reversed(options[1:])]
        self._taken.append(decision)
        pending = None if decision.actor < 0 else self.actors[decision.actor].pending
        self._least = decision.actor if pending is not None and pending[0] in _READS else 0
        if decision.how != "done":
            self._faults -= 1
        if self._is_switch(actor, decision):
            self._switches -= 1
        return decision

    def _options(self, actor: Actor | None) -> Iterator[Decision]:
        order = [] if actor is None or actor.over else [actor]
        order += [other for other in self.actors if other is not actor and not other.over]
        for other in order:
            assert other.pending is not None
            name, _ = other.pending
            searched = self._search.switches is None and self._search.drawn is None
            if searched and name in _READS and other.number < self._least:
                continue  # it could have read before: nothing has changed since
            for how in ("done", *sorted(_HOW.get(name, frozenset[str]()) & self._search.kinds)):
                decision = Decision(other.number, how, operation=" ".join(other.pending))
                if how != "done" and not self._faults:
                    continue
                if self._is_switch(actor, decision) and not self._switches:
                    continue
                yield decision
        for parcel in range(len(self._parcels)):
            yield Decision(-1, parcel=parcel)

    def _is_switch(self, actor: Actor | None, decision: Decision) -> bool:
        return (
            self._search.switches is not None
            and actor is not None
            and not actor.over
            and decision.actor not in (-1, actor.number)
        )

    def _point(self, actor: Actor | None) -> bytes:
        """Return what decides everything that follows: the store, and what each process has seen of it."""
        point = hashlib.blake2b(digest_size=16)
        point.update(self._state.to_bytes(16, "big"))
        for other in self.actors:
            point.update(other.seen.digest() + repr((other.over, other.pending)).encode())
        point.update(repr((self._faults, sorted(self._sent), sorted(self.newest.items()))).encode())
        if self._search.switches is None:
            point.update(bytes([self._least]))
        elif actor is not None:
            point.update(bytes([actor.number]))
        return point.digest()


def _essence(key: str, data: bytes) -> bytes:
    """Return what the future can depend on; how long something took differs from schedule to schedule."""
    if key.startswith(layout.COMMITS):
        return str(json.loads(data)["write_id"]).encode()
    return data if key.startswith((layout.EPOCHS, layout.LOW_WATER)) else b""


_READS = frozenset({"get", "get_range", "size", "list", "begin"})
_HOW = {
    "put": frozenset({"lost", "late", "twice"}),
    "put_if_absent": frozenset({"lost", "late", "twice"}),
    "delete": frozenset({"lost", "late", "twice"}),
    "list": frozenset({"stale"}),
}


class Ordered:
    """The store as one process sees it: each operation waits for its turn."""

    def __init__(self, execution: Execution, actor: Actor) -> None:
        self._execution = execution
        self._actor = actor

    def get(self, key: str) -> bytes:
        return self._operate("get", key, lambda: self._execution.store.get(key))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._operate("get_range", key, lambda: self._execution.store.get_range(key, offset, length))

    def size(self, key: str) -> int:
        return self._operate("size", key, lambda: self._execution.store.size(key))

    def put(self, key: str, data: Content) -> None:
        content = b"".join(pieces(data))
        self._operate("put", key, lambda: self._execution.store.put(key, content))

    def put_if_absent(self, key: str, data: Content) -> bool:
        content = b"".join(pieces(data))
        return self._operate("put_if_absent", key, lambda: self._execution.store.put_if_absent(key, content))

    def list(self, prefix: str = "") -> Names:
        return self._operate("list", prefix, lambda: self._execution.store.list(prefix))

    def delete(self, key: str) -> None:
        self._operate("delete", key, lambda: self._execution.store.delete(key))

    def _operate(self, name: str, key: str, carry_out: Callable[[], T]) -> T:
        return self._execution.operate(self._actor, name, key, carry_out)
