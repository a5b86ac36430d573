"""How a change, or what does not fit, is told: in the words of the script, the cause first, one line each.

A setting stands in many places of a state: a learning rate is in the model, its schedule and every group
of the optimizer. `Words` say how people call what stands at a place; everything called the same is one
line. Tensors that differ because of one cause are counted, not listed.

Not promised: that the first line is the only cause.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from unbroken.engine.changes import BirthLeaf, Change
from unbroken.state.graft import Difference
from unbroken.state.nodes import unescape

CAUSE, USUAL, CONSEQUENCE = 0, 1, 2
"""Ranks: what a person has typed; anything; what only follows from something else."""

_OF_MODULES = frozenset({"_modules", "_parameters", "_buffers"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What is said of one place. Either `before` and `after`, or `detail`."""

    subject: str
    """How people call it. Everything with the same subject is one line, that of the smallest `order`."""
    before: str = ""
    after: str = ""
    detail: str = ""
    rank: int = USUAL
    order: tuple[int, ...] = ()
    alike: str = ""
    """What others of its kind are called; they are counted on the line of the first."""
    effect: str = ""
    """What becomes of it, if that is not what becomes of every such change."""
    passable: bool = False
    """Whether a start that refuses it would go on if `allow_changed` named the subject."""

    @property
    def text(self) -> str:
        """What differs."""
        return self.detail or f"{self.before} -> {self.after}"


Reword = Callable[[str, Words], Words]
"""Puts the words on a place into those of a framework."""


def same_words(_place: str, words: Words) -> Words:
    """Leave the words as they are."""
    return words


def subject_of(place: str) -> str:
    """Return how a place is called if nobody knows better: modules of PyTorch as PyTorch calls them.

    >>> subject_of("agent/net/_modules/body/_modules/0/_parameters/weight")
    'agent/net body.0.weight'
    """
    keys = [unescape(key) for key in place.split("/")]
    first = next((i for i, key in enumerate(keys) if key in _OF_MODULES), len(keys))
    path = ".".join(key for key in keys[first:] if key not in _OF_MODULES)
    return " ".join(filter(None, ("/".join(keys[:first]), path)))


def words_of_change(change: Change) -> Words:
    """Return the words on something that the user changed."""
    usual = Words(subject=subject_of(change.place), order=(change.place.count("/"),))
    before, after = change.birth, change.now
    if before is None or after is None:
        return replace(usual, detail="was there and is gone" if after is None else f"is new: {_shown(after)}")
    if before.shape is not None and after.shape is not None and before.shape != after.shape:
        usual = replace(usual, alike="tensors of another shape", order=(-len(before.shape), *usual.order))
    if _shown(before) == _shown(after):
        if before.kind == after.kind == "callable":
            return replace(usual, detail=f"{_shown(before)} has other code")
        return replace(usual, before=before.text, after=after.text)
    return replace(usual, before=_shown(before), after=_shown(after))


def looks_alike(change: Change) -> bool:
    """Whether both sides of a change have one short form: nothing that is short says what differs."""
    before, after = change.birth, change.now
    return before is not None and after is not None and bool(before.shown) and before.shown == after.shown


def _shown(leaf: BirthLeaf) -> str:
    return leaf.shown or leaf.text


def words_of_difference(difference: Difference) -> Words:
    """Return the words on something that a plan has found."""
    place, detail = difference.place, _MODULE.sub("", difference.detail)
    return Words(subject=subject_of(place), detail=detail, order=(place.count("/") + 1,))


_MODULE = re.compile(r"\b\w+(?:\.\w+)*:(?=[A-Z_])")
"""The module before the name of a class."""


def lines(told: Iterable[Words]) -> list[str]:
    """Return one line for each subject, causes first."""
    subjects: dict[str, Words] = {}
    for words in told:
        known = subjects.get(words.subject)
        if known is None or (words.rank, words.order) < (known.rank, known.order):
            subjects[words.subject] = words
    found: list[str] = []
    ranked = sorted(subjects.values(), key=lambda words: words.rank)  # stable: as they were found
    folded: set[str] = set()
    for words in ranked:
        if words.alike in folded:
            continue
        if not words.alike:
            found.append(_line(words))
            continue
        folded.add(words.alike)
        group = [one for one in ranked if one.alike == words.alike]
        shown = min(group, key=lambda one: one.order)
        others = len(group) - 1
        more = f", and {others:,} more {words.alike}" if others > 1 else ", and one more" * others
        found.append(_line(replace(shown, detail=shown.text + more)))
    return found


def _line(words: Words) -> str:
    effect = f" ({words.effect})" if words.effect else ""
    return f"{words.subject}: {words.text}{effect}" if words.subject else f"{words.text}{effect}"
