"""Lays one saved state over the live objects: judge, plan, refuse or apply, read back.

Invariant: until everything is decoded, judged and planned without an error, no live object is touched.
After the writes the state is captured again and compared; a training never starts on a state that
differs from the saved one anywhere but where the user changed it.

Not promised: a way back once writing has begun. If it fails then, the process has to end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from unbroken.engine.changes import (
    Change,
    KnowsCauses,
    Verdict,
    every_name,
    find_changes,
    made_later,
    named,
    within,
)
from unbroken.engine.guards.devices import check_devices
from unbroken.engine.source import RemembersRows, Source, SpeaksPlainly
from unbroken.engine.volatile import without_clocks
from unbroken.engine.wording import (
    Reword,
    Words,
    lines,
    looks_alike,
    same_words,
    subject_of,
    words_of_change,
    words_of_difference,
)
from unbroken.errors import RestoreFailed, StateMismatch, Untrusted
from unbroken.repo.vouching import Voucher, Vouching
from unbroken.state.diff import ABSENT, LeafDifference, compare
from unbroken.state.graft import Difference, Graft
from unbroken.state.pickles import Trust
from unbroken.state.places import last_key
from unbroken.state.snapshot import Promise, Snapshot, component_of
from unbroken.types import Fidelity, worse

SHOWN = 5
ALLOWED = "allowed, so the run is no longer exact"
MADE_LATER = "was made while training ran, and cannot be built from a checkpoint"
NOT_VALIDATED = "what was restored is not compared with what was saved (validate=False)"
LEFT_OUT = "was made while training ran, and is left out"
_REPORTED = frozenset({"changed", "stays", "lost", "forgotten", "fresh", "removed"})
"""Levels of a plan's differences that a person should know of."""
_PROGRAMS_OWN = frozenset({"changed", "stays", "kept", "moved"})
"""Levels of what the program keeps as it built it: they explain what differs there, and below."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The user's changes, sorted by what becomes of them."""

    keep: tuple[str, ...]
    reports: tuple[Words, ...]
    errors: Mapping[str, Words]
    """By their places."""
    vague: frozenset[str] = frozenset()
    """Places of errors of which a person is shown no difference: what the plan runs into there says more."""
    only_strict: bool = False
    """Whether every error is one only because strictness was asked for."""
    inexact: tuple[str, ...] = ()
    """What was allowed although the run is not exact with it."""


def judge(source: Source, changes: Sequence[Change], *, strict: bool, allowed: Collection[str]) -> Judged:
    """Ask the source about every change; `strict` turns reports into errors, `allowed` lets one pass."""
    reword = _reword_of(source)
    keep: list[str] = []
    reports: list[Words] = []
    inexact: list[Words] = []
    errors: dict[str, Words] = {}
    vague: set[str] = set()
    only_strict = True
    for change in changes:
        verdict = source.judge(change)
        if verdict is Verdict.SAVED:
            continue
        words = reword(change.place, words_of_change(change))
        permitted = named(change, allowed) or words.subject in allowed
        if (verdict is Verdict.ERROR or strict) and not permitted:
            errors[change.place] = replace(words, effect="")
            if looks_alike(change):
                vague.add(change.place)
            only_strict = only_strict and verdict is not Verdict.ERROR
            continue
        keep.append(change.place)
        effect = words.effect
        if verdict is Verdict.ERROR:
            effect = ALLOWED
            inexact.append(replace(words, effect=""))
        reports.append(replace(words, effect=effect or _usual_effect(change, verdict)))
    return Judged(
        tuple(keep),
        tuple(reports),
        errors,
        frozenset(vague),
        only_strict=only_strict,
        inexact=tuple(lines(inexact)),
    )


def _usual_effect(change: Change, verdict: Verdict) -> str:
    if verdict is Verdict.NEW_VALUE:
        return "the new one is used"
    return "starts fresh" if change.now is not None else "what it held is left out"


def _reword_of(source: Source) -> Reword:
    return source.reword if isinstance(source, SpeaksPlainly) else same_words


@dataclass(frozen=True, slots=True)
class Restored:
    """A restore that succeeded. `adopted`: the user's changes are live now and not yet in a checkpoint."""

    reports: tuple[str, ...]
    adopted: bool
    state: Snapshot
    inexact: tuple[str, ...] = ()
    """What sets the run apart from an undisturbed one from now on."""


def restore(
    source: Source,
    saved: Snapshot,
    *,
    birth: Snapshot | None,
    now: Snapshot,
    strict: bool = False,
    allowed: Collection[str] = (),
    trusted: Trust = False,
    agreed: Callable[[], None] = lambda: None,
    validate: bool = True,
    voucher: Callable[[], Voucher] | None = None,
) -> Restored:
    """Bring the live objects of `source` to the saved state, which is used up: its memory may become theirs.

    `agreed` is called when all is planned and nothing touched; if it raises, nothing is. Without `validate` the
    result is not compared with what was saved, and that is reported. `voucher` is asked where pickled parts are refused.

    Raises:
        StateMismatch: the checkpoint does not fit; every difference is listed, nothing was touched.
        Untrusted: it has pickled parts that may not be loaded; nothing was touched.
        CorruptObject: the document contradicts itself; nothing was touched.
        RestoreFailed: writing failed, or the result is not what was saved.
    """
    allowed = every_name(allowed)
    saved.adoptable = saved.recheck is not None
    changes: Sequence[Change] = find_changes(birth, now, saved) if birth is not None else ()
    if isinstance(source, KnowsCauses):
        changes = source.causes(changes)
    reword = _reword_of(source)
    judged = judge(source, changes, strict=strict, allowed=allowed)
    graft = source.plan(saved, keep=judged.keep, trusted=trusted)
    later = made_later([d.place for d in graft.errors], birth, now, saved)
    permitted: dict[str, Words] = {}
    for place in dict.fromkeys(later.get(d.place, d.place) for d in graft.errors):
        detail = LEFT_OUT if place in later.values() else "kept as built"
        told = reword(place, Words(subject=subject_of(place), detail=detail))
        if within(place, allowed) or {last_key(place), told.subject} & allowed:
            permitted[place] = told
    if permitted:
        words = [*permitted.values()]
        judged = replace(
            judged,
            keep=(*judged.keep, *permitted),
            reports=(*judged.reports, *(replace(one, effect=ALLOWED) for one in words)),
            inexact=tuple(dict.fromkeys((*judged.inexact, *lines(words)))),
        )
        graft = source.plan(saved, keep=judged.keep, trusted=trusted)
    _refuse(graft, judged, reword, later, voucher)
    noted = [d for d in graft.differences if d.level in _REPORTED]
    reports = lines([*judged.reports, *(reword(d.place, words_of_difference(d)) for d in noted)])
    # What training had put there is gone; what a person has changed is told as that.
    changed = {change.place for change in changes if change.untouched}
    gone = [d for d in noted if d.level == "stays" and birth is not None and not within(d.place, changed)]
    inexact = tuple(
        dict.fromkeys((*judged.inexact, *lines(reword(d.place, words_of_difference(d)) for d in gone)))
    )
    agreed()
    _apply(graft)
    state = _read_back(source, saved, graft, judged) if validate else _unread(source, saved)
    if not validate:
        reports = [*reports, NOT_VALIDATED]
    check_devices(now, saved, state)
    return Restored(tuple(reports), bool(judged.keep or gone), state, inexact)


def _refuse(
    graft: Graft,
    judged: Judged,
    reword: Reword,
    later: Mapping[str, str],
    voucher: Callable[[], Voucher] | None,
) -> None:
    untrusted = [d for d in graft.differences if d.level == "untrusted"]
    if untrusted:
        # Where classes are named, what keeps a part from being loaded is which others it needs.
        shown = [str(d) if graft.trusted else d.place for d in untrusted[:SHOWN]]
        said = Voucher(Vouching.UNSIGNED) if voucher is None else voucher()
        raise Untrusted(
            f"The checkpoint holds {len(untrusted)} pickled parts {said}:"
            f" {', '.join(shown).rstrip('.')}. Nothing was written.",
            hint=said.hint,
            places=[d.place for d in untrusted],
        )
    # A change that was judged tells more than what the plan ran into at, or below, the same place.
    ran_into = {place for place in judged.vague if any(within(d.place, {place}) for d in graft.errors)}
    told = {place: words for place, words in judged.errors.items() if place not in ran_into}
    errors = [*told.values()]
    found = [d for d in graft.errors if not within(d.place, told)]
    made = dict.fromkeys(later[d.place] for d in found if d.place in later)
    unbuilt = [reword(place, Words(subject=subject_of(place), detail=MADE_LATER)) for place in made]
    found = [d for d in found if d.place not in later]
    errors += [reword(d.place, words_of_difference(d)) for d in found]
    if unbuilt and not errors:
        names = ", ".join(f'"{name}"' for name in dict.fromkeys(words.subject for words in unbuilt))
        raise StateMismatch(
            "The checkpoint holds what a start of this script does not have; nothing was touched.",
            hint=f"Go on without it, with allow_changed={{{names}}}: it starts anew, and the run is then no longer exact."
            " In a new run make it before training begins.",
            differences=lines(unbuilt),
        )
    errors += unbuilt
    if errors:
        raise StateMismatch(
            "The checkpoint does not fit what this script has built; nothing was touched.",
            hint=_way_out(judged, errors, found),
            differences=lines(errors),
        )


def _way_out(judged: Judged, errors: Sequence[Words], found: Sequence[Difference]) -> str:
    """Return what a person can do about `errors`, of which `found` are those that the plan ran into."""
    names = ", ".join(f'"{name}"' for name in dict.fromkeys(words.subject for words in errors))
    if judged.only_strict and not found:
        return f"Start with the former settings, without strict=True, or with allow_changed={{{names}}}."
    passable = {words.subject for words in errors if words.passable}
    if all(words.subject in passable for words in errors):
        return f"Start with the former settings, or with allow_changed={{{names}}}: the run is then no longer exact."
    return "Start with the former settings, or use another run."


def _apply(graft: Graft) -> None:
    try:
        graft.apply()
    except RestoreFailed:
        raise
    except Exception as error:  # whatever a library raises; damage found now is too late for an older one
        raise RestoreFailed(
            f"The restore failed half-way: {type(error).__name__}: {error}.",
            hint="The objects are in no usable state; start the process again.",
        ) from error


class _Explained:
    """Which differences between the saved and the live state a plan has announced.

    What the program keeps may differ at any depth. What is lost or fresh explains only that something
    is gone, or new: a value that differs beside it is an error all the same.
    """

    def __init__(self, graft: Graft, keep: Collection[str]) -> None:
        def places(*levels: str) -> frozenset[str]:
            return frozenset(d.place for d in graft.differences if d.level in levels)

        self._own = places(*_PROGRAMS_OWN) | frozenset(keep)
        self._lost = places("lost", "forgotten")
        self._fresh = places("fresh")

    def covers(self, found: LeafDifference) -> bool:
        if found.place in self._lost or found.place in self._fresh or within(found.place, self._own):
            return True
        # A part that opened a component of its own is gone there as well, below the place it had.
        gone = found.after == ABSENT and within(found.place, self._lost)
        return gone or (found.before == ABSENT and within(found.place, self._fresh))


def _spoilt(saved: Snapshot, graft: Graft) -> list[LeafDifference]:
    """Return what was taken over from `saved` and changed since: it would be compared with itself."""
    broken = saved.recheck(graft.adopted) if saved.recheck is not None else []
    return [LeafDifference(name, graft.adopted[name, i], "saved", "overwritten") for name, i in broken]


def _unread(source: Source, saved: Snapshot) -> Snapshot:
    """Return the state as it is, compared with nothing: of no part it is known that the run has it already."""
    state = source.capture()
    if isinstance(source, RemembersRows):
        source.restored(saved, state, different=state.components.keys())
    return state


def _read_back(source: Source, saved: Snapshot, graft: Graft, judged: Judged) -> Snapshot:
    state = source.capture()
    explained = _Explained(graft, judged.keep)
    # A buffer may say since in another way which of its rows are in use.
    found = [*compare(saved, state, common_rows=True), *_spoilt(saved, graft)]
    wrong = [d for d in found if not explained.covers(d)]
    wrong = without_clocks(source, saved, wrong)
    if wrong:
        shown = "; ".join(str(d) for d in wrong[:SHOWN])
        raise RestoreFailed(
            f"After the restore {len(wrong)} values are not what was saved: {shown}.",
            hint="The training must not go on from here; please report what stands at these places.",
        )
    for lost in graft.differences:
        if lost.level == "forgotten":
            name = component_of(lost.place, saved)
            promise = Promise(Fidelity.NOT_CAPTURED, str(lost))
            state.promises[name] = worse(state.promises.get(name, promise), promise)
    if isinstance(source, RemembersRows):
        source.restored(saved, state, different={d.component for d in found})
    return state
