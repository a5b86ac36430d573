"""The experiment behind a probe: does a restored environment go on as the original does?

An environment is stepped into the middle of an episode and captured; it goes on, across resets; the state
is restored, and the same actions are taken again. Every bit of what comes back has to agree, and so have the
next draws from the spaces. Comparing states would prove nothing: a copy that lies compares equal. What agrees
here is tried once more in another process, where a handle, an address or an index into this one's memory leads
nowhere.

The state is laid either over a second environment, which was elsewhere (`judge`), or over the same one
(`judge_in_place`): what the restore does not reach has then moved on, and shows. What stands beside the
environment, in its classes and modules, is compared before and after all steps.

Meant for a process of its own, in which the clock may be set and the environment may leave what it wants.
Not promised: state that shows only after more steps than are taken here, unless it stands in a class or a
module.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from unbroken.capture import addresses, registry, replay
from unbroken.capture import replay_cost as cost
from unbroken.capture.clock import Clock
from unbroken.capture.environments import (
    How,
    Verdict,
    chain,
    env_policy,
    is_wrapper_of_library,
    known,
    put_in,
)
from unbroken.capture.generators import GlobalGenerators
from unbroken.capture.neighbours import Neighbours
from unbroken.capture.policies import default_policy
from unbroken.capture.tape import Witness
from unbroken.errors import RestoreFailed, StateMismatch, UnbrokenError
from unbroken.state import diff
from unbroken.state.graft import plan
from unbroken.state.lookup import attributes_of, lookup
from unbroken.state.policy import Policy
from unbroken.state.snapshot import Note, Snapshot
from unbroken.state.walk import capture, walk
from unbroken.types import Fidelity

BEFORE, AFTER, RESETS_AT = 25, 60, (20, 40)
"""Steps before the capture, steps compared, and when resets come in between."""

NAMED = 3
"""So many moved values are named."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What another process needs to repeat a trial."""

    how: How
    snapshot: Snapshot
    actions: list[Any]
    expected: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Finding:
    """What came out of one way of capturing."""

    difference: str = ""
    """What went on differently after the restore; empty if nothing did."""
    left: str = ""
    """An attribute that the restore did not bring back, although nothing shows it yet."""
    moved: tuple[str, ...] = ()
    """What stands beside the environment and moved while it stepped."""
    missing: str = ""
    """What the capture says that it does not hold."""
    reservation: str = ""
    """Why the capture calls itself approximate."""
    step_seconds: float = 0.0
    """What a step of a replay took; 0 where nothing is replayed."""
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True)
class Foreign:
    """A state as another process would have written it. `told`: what to say if nothing can go on from it."""

    told: str
    evidence: Evidence
    must_agree: bool
    """Whether it has to go on just as it did; else it only has to go on."""


Elsewhere = Callable[[Evidence], str]
"""Repeats a trial in another process; returns what goes on differently there, or nothing."""


def policy() -> Policy:
    """Return the rules by which environments are captured in this process."""
    return default_policy().merged(env_policy())


def _reset(env: Any, seed: int | None = None) -> str:
    witness = Witness()
    witness.see((env.reset() if seed is None else env.reset(seed=seed))[0])
    return witness.hexdigest()


def _follow(env: Any, actions: list[Any]) -> list[tuple[str, str]]:
    """Step through the actions and return what came back, as (what, digest) in order, with draws from the spaces
    before and after."""
    seen = _draws(env, "next")
    for index, action in enumerate(actions):
        names = ("observation", "reward", "end of the episode", "truncation")
        result = env.step(copy.deepcopy(action))
        for name, value in zip(names, result, strict=False):
            witness = Witness()
            witness.see(value)
            seen.append((f"{name} of step {index + 1}", witness.hexdigest()))
        if result[2] or result[3] or index in RESETS_AT:
            seen.append((f"observation after the reset at step {index + 1}", _reset(env)))
    return [*seen, *_draws(env, "last")]


def _draws(env: Any, which: str) -> list[tuple[str, str]]:
    """Draw from each space of the environment and of its wrappers, which may share one."""
    seen: list[tuple[str, str]] = []
    for name, space in _spaces(env):
        witness = Witness()
        with suppress(
            Exception
        ):  # whatever a space of the program's own raises: then nobody can draw from it
            witness.see(space.sample())
        seen.append((f"{which} draw from {name}", witness.hexdigest()))
    return seen


def _spaces(env: Any) -> list[tuple[str, Any]]:
    """Return the spaces of an environment and of its wrappers, which may share one, each once."""
    found: dict[int, tuple[str, Any]] = {}
    for layer in chain(env):
        for name in ("action_space", "observation_space"):
            space: Any = getattr(layer, name, None)
            if hasattr(space, "sample"):
                found.setdefault(id(space), (name, space))
    return list(found.values())


def _seed_spaces(env: Any, seed: int) -> None:
    """Give every space a generator: one that has none yet makes it at its first draw, of the system's entropy."""
    for number, (_, space) in enumerate(_spaces(env)):
        with suppress(Exception):  # see `_draws`
            space.seed(seed + number)


def _parting(expected: list[tuple[str, str]], found: list[tuple[str, str]]) -> str:
    for (what, a), (_, b) in zip(expected, found, strict=False):
        if a != b:
            return f"the {what} differs"
    return "" if len(expected) == len(found) else "the episodes end at different steps"


def _warmed_up(env: Any, actions: list[Any]) -> None:
    """Go into the middle of an episode."""
    _reset(env)
    for action in actions:
        result = env.step(copy.deepcopy(action))
        if result[2] or result[3]:
            _reset(env)


def _restored(
    one: Any, other: Any, how: How, actions: list[Any], rules: Policy, clock: Clock | None
) -> Finding:
    """Capture one environment, let it go on, lay its state over the other, and let that go on."""
    generators = GlobalGenerators()
    snapshot = capture({"env": one, "generators": generators}, rules)
    attributes = _attributes(one, rules)
    told = cost.total(cost.tellers(chain(one)))
    expected = _follow(one, actions)
    if clock is not None:
        clock.advance()
    plan(snapshot, {"env": other, "generators": generators}, rules).apply()
    # A replay leaves alone what it does not know of; that may show much later than here.
    left = _left_behind(attributes, _attributes(other, rules))
    found = _follow(other, actions)
    notes = _notes(snapshot.notes)
    return Finding(
        difference=_parting(expected, found),
        left=left,
        missing=notes.get("not captured", ""),
        reservation=notes.get("approximate", ""),
        step_seconds=told.seconds / told.steps if told.steps else 0.0,
        evidence=Evidence(how, snapshot, actions, expected),
    )


def repeat(make: Callable[[], Any], evidence: Evidence, clock: Clock | None = None) -> str:
    """Lay what another process has captured over an environment that `make` builds; return what differs."""
    env = make()
    try:
        _seed_spaces(env, 6)
        _reset(env, seed=12)
        return _repeated(env, evidence, clock)
    finally:
        env.close()


def repeat_in_place(env: Any, evidence: Evidence) -> str:
    """The same over a live environment. To be called in a copy of the process, which ends then."""
    inner, clock = _prepared_in_place(env)
    _reset(inner)  # as every process does before it restores
    try:
        return _repeated(inner, evidence, clock)
    except RestoreFailed as failed:
        return _raised(failed)


def goes_on(env: Any, evidence: Evidence) -> str:
    """The same where it need not agree: return what is raised, or nothing."""
    try:
        different = repeat_in_place(env, evidence)
    except StateMismatch:  # another object of the class may be of another size
        return ""
    return different if different.startswith(_RAISED) else ""


_RAISED = "its restore raised"


def _raised(failed: RestoreFailed) -> str:
    cause = failed.__cause__ or failed
    return f"{_RAISED} {type(cause).__name__}: {cause}"


def _repeated(env: Any, evidence: Evidence, clock: Clock | None) -> str:
    rules = policy()
    put_in(env, Verdict(evidence.how))
    if clock is not None:
        clock.advance()
    plan(evidence.snapshot, {"env": env, "generators": GlobalGenerators()}, rules).apply()
    return _parting(evidence.expected, _follow(env, evidence.actions))


def _attributes(env: Any, rules: Policy) -> Snapshot:
    """Return all that the attributes of an environment show, whichever way it is captured."""
    base, plainly = list(chain(env))[-1], _unrecorded(rules)
    shown: dict[str, object] = {}
    for name, value in attributes_of(base, lookup(plainly).facts(type(base))).items():
        if name not in _ELSEWHERE:
            with suppress(Exception):  # what a foreign object raises: then it does not show
                capture({name: value}, plainly)
                shown[name] = value
    return capture(shown, plainly)


def _unrecorded(rules: Policy) -> Policy:
    return replace(rules, captors=tuple(rule for rule in rules.captors if rule is not replay.rule))


_ELSEWHERE = frozenset({"step", "reset", "spec", "_np_random", "_np_random_seed"})
"""Attributes that a replay has in its own keeping."""


def _left_behind(before: Snapshot, after: Snapshot) -> str:
    """Return the first attribute that a restore did not bring back. A generator's seed is not its state."""
    places = (found.place for found in diff.compare(before, after))
    return next((place for place in places if "sequence" not in place.split("/")), "")


def _notes(notes: Iterable[Note]) -> dict[str, str]:
    first: dict[str, str] = {}
    for note in notes:
        first.setdefault(note.kind, f"{note.place}: {note.detail}")
    return first


def compare(make: Callable[[], Any], how: How, clock: Clock | None = None) -> Finding:
    """Try one way of capturing, with two environments that `make` builds."""
    rules = policy()
    one, other = make(), make()
    try:
        _seed_spaces(other, 6)
        _seed_spaces(one, 5)
        _reset(one, seed=11)
        _reset(other, seed=12)
        for _ in range(3):
            other.step(one.action_space.sample())
        attached = [put_in(env, Verdict(how)) for env in (one, other)]
        before = [one.action_space.sample() for _ in range(BEFORE)]
        actions = [one.action_space.sample() for _ in range(AFTER)]
        neighbours = Neighbours(chain(one), _unrecorded(rules))
        _warmed_up(one, before)
        finding = _restored(one, other, how, actions, rules, clock)
        for attachment in attached:
            attachment.detach()
        return replace(finding, moved=tuple(neighbours.moved()))
    finally:
        one.close()
        other.close()


def judge(make: Callable[[], Any], clock: Clock | None = None, elsewhere: Elsewhere | None = None) -> Verdict:
    """Return the verdict on the environments that `make` builds: the first way that holds, here and, if there
    is such a process, `elsewhere`."""
    env = make()
    sure, captured = known(env), registry.registered(list(chain(env))[-1]) is not None
    env.close()
    first = How.CAPTURER if captured else sure.how if sure is not None else How.STRUCTURAL
    ways = dict.fromkeys((first, How.REPLAY, How.WHOLE_REPLAY))
    return decide(ways, lambda how: compare(make, how, clock), clock, elsewhere).verdict


def compare_in_place(env: Any, how: How, clock: Clock) -> Finding:
    """Try one way of capturing on the environment itself, which does not come back from it."""
    rules = policy()
    neighbours = Neighbours(chain(env), _unrecorded(rules))
    space = copy.deepcopy(env.action_space)
    space.seed(5)
    _seed_spaces(env, 5)
    actions = [space.sample() for _ in range(BEFORE + AFTER)]
    attachment = put_in(env, Verdict(how))
    try:
        _warmed_up(env, actions[:BEFORE])
        finding = _restored(env, env, how, actions[BEFORE:], rules, clock)
        return replace(finding, moved=tuple(neighbours.moved()))
    finally:
        attachment.detach()


def judge_in_place(env: Any, refuted: Mapping[How, str] = MappingProxyType({})) -> Judgement:
    """Return the verdict on a live environment. To be called in a copy of the process, which ends then.

    `refuted` are ways that have held here, with what went on differently when another process repeated it.
    """
    inner, clock = _prepared_in_place(env)
    ways = [How.STRUCTURAL, How.REPLAY]
    with suppress(Exception):  # whatever a constructor raises: then there is no second one
        if replay.fresh(list(chain(inner))[-1]) is not None:
            ways.append(How.WHOLE_REPLAY)
    left = [how for how in ways if how not in refuted]
    return decide(left, lambda how: compare_in_place(inner, how, clock), clock, refuted=refuted.values())


def judge_capturer(env: Any) -> Judgement:
    """Return the verdict on a live environment with a capturer of the user's own. To be called in a copy of the
    process, which ends then.

    What cannot be tried there (a simulator behind a socket) stands on the user's word, and so does what nothing
    shows: the capturer may hold it.
    """
    inner, clock = _prepared_in_place(env)
    try:
        finding = compare_in_place(inner, How.CAPTURER, clock)
    except RestoreFailed as failed:
        if isinstance(failed.__cause__, OSError):  # it reaches for what is cut off here
            return Judgement(Verdict(How.CAPTURER))
        reason = f"its capturer does not bring it back: {_raised(failed)}"
        return Judgement(Verdict(How.CAPTURER, Fidelity.APPROXIMATE, reason))
    except Exception:  # noqa: BLE001 - an environment may raise anything where it is cut off from the world
        return Judgement(Verdict(How.CAPTURER))
    if finding.difference:
        reason = f"its capturer does not bring back all of it: after a restore {finding.difference}"
        return Judgement(Verdict(How.CAPTURER, Fidelity.APPROXIMATE, reason))
    fidelity = Fidelity.APPROXIMATE if finding.reservation else Fidelity.EXACT
    foreign = [*_with_other_addresses(inner, finding.evidence), *_of_another(inner, clock)]
    return Judgement(Verdict(How.CAPTURER, fidelity, finding.reservation), finding.evidence, tuple(foreign))


def _with_other_addresses(env: Any, evidence: Evidence | None) -> Iterator[Foreign]:
    """Yield the state with every address in it exchanged, if there is one."""
    if evidence is None:
        return
    objects = list(walk({"env": env}, policy(), contents=False).met())
    snapshot, places = addresses.exchanged(evidence.snapshot, "env", objects)
    names = dict.fromkeys(place.rpartition("<state>/")[2] for place in places)
    if not names:
        return
    if all("<state>" in place for place in places):
        told = f"its capturer saves an address in this process ({_listed(tuple(names))}), not what is there"
    else:
        kept = tuple(dict.fromkeys(place for place in places if "<state>" not in place))
        told = (
            f"its attribute {_listed(kept)} is an address in this process and comes back as it was; register its"
            " capturer with attributes=False"
        )
    yield Foreign(told, replace(evidence, snapshot=snapshot), must_agree=True)


def _of_another(env: Any, clock: Clock) -> Iterator[Foreign]:
    """Yield the state of another object of its class, if one can be built: with handles of its own."""
    with suppress(Exception):  # whatever a constructor raises: then there is no second one
        other = None if list(chain(env)) != [env] else replay.fresh(env)
        if other is not None and type(other) is type(env):
            evidence = compare_in_place(other, How.CAPTURER, clock).evidence
            told = (
                "another one built like it cannot take its state; if an attribute holds a handle, register its capturer"
                " with attributes=False"
            )
            if evidence is not None:
                yield Foreign(told, evidence, must_agree=False)


def _prepared_in_place(env: Any) -> tuple[Any, Clock]:
    inner = _below_libraries(env)
    clock = Clock()
    for layer in chain(env):
        if vars(layer).get("render_mode") == "human":
            vars(layer)["render_mode"] = None
    clock.install(Neighbours(chain(inner), policy()).modules)
    return inner, clock


def _below_libraries(env: Any) -> Any:
    """Return the environment without the outer wrappers that are known by name."""
    layers = list(chain(env))
    return next((layer for layer in layers if not is_wrapper_of_library(layer)), layers[-1])


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and what another process needs to repeat the trial that it rests on."""

    verdict: Verdict
    evidence: Evidence | None = None
    foreign: tuple[Foreign, ...] = ()
    """The state as other processes would have written it, which has to be good here too."""


def decide(
    ways: Iterable[How],
    attempt: Callable[[How], Finding],
    clock: Clock | None = None,
    elsewhere: Elsewhere | None = None,
    *,
    refuted: Collection[str] = (),
) -> Judgement:
    """Return the verdict that follows from trying the ways in turn: the first that holds, else the first
    that nothing was seen to go wrong with, else the attributes. `refuted` says what ways tried before did."""
    against = list(refuted)
    failed: list[str] = []
    incomplete: list[Judgement] = []
    moved: tuple[str, ...] = ()
    for how in ways:
        if clock is not None:
            clock.readers.clear()
        try:
            finding = attempt(how)
        except UnbrokenError as error:
            failed.append(str(error))
            continue
        except Exception as error:  # noqa: BLE001 - an environment may raise anything; that is the finding
            failed.append(f"{type(error).__name__}: {error}")
            continue
        moved = moved or finding.moved
        if finding.difference:
            readers = clock.readers_outside() if clock is not None else []
            if readers:
                reason = f"it reads the clock (in {', '.join(readers)}), and {finding.difference}"
                return Judgement(Verdict(How.STRUCTURAL, Fidelity.APPROXIMATE, reason))
            against.append(finding.difference)
            continue
        if elsewhere is not None and finding.evidence is not None and (other := elsewhere(finding.evidence)):
            against.append(other)
            continue
        judgement = Judgement(_verdict(how, replace(finding, moved=moved)), finding.evidence)
        if not finding.left and (not finding.missing or how is How.CAPTURER):
            return judgement
        incomplete.append(judgement)
    if incomplete:
        return incomplete[0]
    where = f", in {_listed(moved)}" if moved else ""
    reason = f"it keeps state out of reach{where}: after a restore {against[0]}" if against else failed[0]
    return Judgement(Verdict(How.STRUCTURAL, Fidelity.APPROXIMATE, reason))


def _verdict(how: How, finding: Finding) -> Verdict:
    """Return the verdict on a way in which nothing went on differently."""
    if finding.moved:
        reason = f"it keeps state out of reach, in {_listed(finding.moved)}"
    elif finding.left:
        reason = f"its attribute {finding.left} outlives an episode and does not come back"
    elif finding.missing and how is not How.CAPTURER:
        reason = f"it holds what no checkpoint can hold, at {finding.missing}"
    else:
        reason = finding.reservation
    fidelity = Fidelity.APPROXIMATE if reason else Fidelity.EXACT
    return Verdict(how, fidelity, reason, step_seconds=finding.step_seconds)


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"
