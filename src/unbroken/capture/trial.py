"""The experiment behind a probe: does a restored environment go on as the original does?

An environment is stepped into the middle of an episode and captured; it goes on, across resets; the state
is restored, and the same actions are taken again. Every bit of what comes back has to agree. Comparing
states would prove nothing: a copy that lies compares equal.

The state is laid either over a second environment, which was elsewhere (`judge`), or over the same one
(`judge_in_place`): what the restore does not reach has then moved on, and shows. What stands beside the
environment, in its classes and modules, is compared before and after all steps.

Meant for a process of its own, in which the clock may be set and the environment may leave what it wants.
Not promised: state that shows only after more steps than are taken here, unless it stands in a class or a
module.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from unbroken.capture import replay
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
from unbroken.errors import UnbrokenError
from unbroken.state import diff
from unbroken.state.graft import plan
from unbroken.state.policy import Policy
from unbroken.state.snapshot import Note, Snapshot
from unbroken.state.walk import capture
from unbroken.types import Fidelity

BEFORE, AFTER, RESETS_AT = 25, 60, (20, 40)
"""Steps before the capture, steps compared, and when resets come in between."""

NAMED = 3
"""So many moved values are named."""


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


def policy() -> Policy:
    """Return the rules by which environments are captured in this process."""
    return default_policy().merged(env_policy())


def _reset(env: Any, seed: int | None = None) -> str:
    witness = Witness()
    witness.see((env.reset() if seed is None else env.reset(seed=seed))[0])
    return witness.hexdigest()


def _follow(env: Any, actions: list[Any]) -> list[tuple[str, str]]:
    """Step through the actions and return what came back, as (what, digest) in order."""
    seen: list[tuple[str, str]] = []
    for index, action in enumerate(actions):
        names = ("observation", "reward", "end of the episode", "truncation")
        result = env.step(copy.deepcopy(action))
        for name, value in zip(names, result, strict=False):
            witness = Witness()
            witness.see(value)
            seen.append((f"{name} of step {index + 1}", witness.hexdigest()))
        if result[2] or result[3] or index in RESETS_AT:
            seen.append((f"observation after the reset at step {index + 1}", _reset(env)))
    return seen


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


def _restored(one: Any, other: Any, actions: list[Any], rules: Policy, clock: Clock | None) -> Finding:
    """Capture one environment, let it go on, lay its state over the other, and let that go on."""
    generators = GlobalGenerators()
    snapshot = capture({"env": one, "generators": generators}, rules)
    attributes = _attributes(one, rules)
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
    )


def _attributes(env: Any, rules: Policy) -> Snapshot:
    """Return all that the attributes of an environment show, whichever way it is captured."""
    base, plainly = list(chain(env))[-1], _unrecorded(rules)
    shown: dict[str, object] = {}
    for name, value in vars(base).items():
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
        one.action_space.seed(5)
        _reset(one, seed=11)
        _reset(other, seed=12)
        for _ in range(3):
            other.step(one.action_space.sample())
        attached = [put_in(env, Verdict(how)) for env in (one, other)]
        before = [one.action_space.sample() for _ in range(BEFORE)]
        actions = [one.action_space.sample() for _ in range(AFTER)]
        neighbours = Neighbours(chain(one), _unrecorded(rules))
        _warmed_up(one, before)
        finding = _restored(one, other, actions, rules, clock)
        for attachment in attached:
            attachment.detach()
        return replace(finding, moved=tuple(neighbours.moved()))
    finally:
        one.close()
        other.close()


def judge(make: Callable[[], Any], clock: Clock | None = None) -> Verdict:
    """Return the verdict on the environments that `make` builds: the first way that holds."""
    env = make()
    sure = known(env)
    env.close()
    first = sure.how if sure is not None else How.STRUCTURAL
    ways = dict.fromkeys((first, How.REPLAY, How.WHOLE_REPLAY))
    return decide(ways, lambda how: compare(make, how, clock), clock)


def compare_in_place(env: Any, how: How, clock: Clock) -> Finding:
    """Try one way of capturing on the environment itself, which does not come back from it."""
    rules = policy()
    neighbours = Neighbours(chain(env), _unrecorded(rules))
    space = copy.deepcopy(env.action_space)
    space.seed(5)
    actions = [space.sample() for _ in range(BEFORE + AFTER)]
    attachment = put_in(env, Verdict(how))
    try:
        _warmed_up(env, actions[:BEFORE])
        finding = _restored(env, env, actions[BEFORE:], rules, clock)
        return replace(finding, moved=tuple(neighbours.moved()))
    finally:
        attachment.detach()


def judge_in_place(env: Any) -> Verdict:
    """Return the verdict on a live environment. To be called in a copy of the process, which ends then."""
    inner = _below_libraries(env)
    clock = Clock()
    for layer in chain(env):
        if vars(layer).get("render_mode") == "human":
            vars(layer)["render_mode"] = None
    clock.install(Neighbours(chain(inner), policy()).modules)
    ways = [How.STRUCTURAL, How.REPLAY]
    with suppress(Exception):  # whatever a constructor raises: then there is no second one
        if replay.fresh(list(chain(inner))[-1]) is not None:
            ways.append(How.WHOLE_REPLAY)
    return decide(ways, lambda how: compare_in_place(inner, how, clock), clock)


def _below_libraries(env: Any) -> Any:
    """Return the environment without the outer wrappers that are known by name."""
    layers = list(chain(env))
    return next((layer for layer in layers if not is_wrapper_of_library(layer)), layers[-1])


def decide(ways: Iterable[How], attempt: Callable[[How], Finding], clock: Clock | None = None) -> Verdict:
    """Return the verdict that follows from trying the ways in turn: the first that holds, else the first
    that nothing was seen to go wrong with, else the attributes."""
    refuted: list[str] = []
    failed: list[str] = []
    incomplete: list[Verdict] = []
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
        if not finding.difference:
            verdict = _verdict(how, replace(finding, moved=moved))
            if not finding.left and (not finding.missing or how is How.CAPTURER):
                return verdict
            incomplete.append(verdict)
            continue
        readers = clock.readers_outside() if clock is not None else []
        if readers:
            reason = f"it reads the clock (in {', '.join(readers)}), and {finding.difference}"
            return Verdict(How.STRUCTURAL, Fidelity.APPROXIMATE, reason)
        refuted.append(finding.difference)
    if incomplete:
        return incomplete[0]
    where = f", in {_listed(moved)}" if moved else ""
    reason = f"it keeps state out of reach{where}: after a restore {refuted[0]}" if refuted else failed[0]
    return Verdict(How.STRUCTURAL, Fidelity.APPROXIMATE, reason)


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
    return Verdict(how, Fidelity.APPROXIMATE if reason else Fidelity.EXACT, reason)


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"
