"""Where tensors lie after a restore: each on the device of its twin.

What the twin does not have yet (the moments of an optimizer) goes where its neighbours went: for each device that was
saved there are those on which the twin has what was saved there. A tensor that was left behind on another device ends in
an error much later, in the middle of a step, or makes every step slow.

Not promised: anything of numbers without dimensions, which libraries keep on the CPU by design.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from unbroken.errors import RestoreFailed
from unbroken.state.nodes import Coded, Dict, Tuple
from unbroken.state.places import visit
from unbroken.state.snapshot import Snapshot

SHOWN = 5
CPU, META = "cpu", "meta"


@dataclass(frozen=True, slots=True)
class _Lies:
    """Where one tensor lies, and whether it has dimensions."""

    device: str
    scalar: bool


def check_devices(twin: Snapshot, saved: Snapshot, now: Snapshot) -> None:
    """Sweep over all tensors of a state that was restored. `twin` is the state before, `now` the one after.

    Raises:
        RestoreFailed: a tensor is not where it belongs; each is named.
    """
    after = dict(_tensors(now))
    if not after:
        return
    before, was = dict(_tensors(twin)), dict(_tensors(saved))
    homes = _homes(before, was)
    wrong: list[str] = []
    for place, found in after.items():
        if found.scalar or found.device == META:
            continue
        if place in before:
            right = {before[place].device}
        elif place in was:
            right = homes.get(was[place].device, {found.device})
        else:
            continue
        if found.device not in right:
            wrong.append(f"{place} is on {found.device} and belongs on {' or '.join(sorted(right))}")
    if wrong:
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise RestoreFailed(
            f"After the restore {len(wrong)} tensors are on another device than the script's own:"
            f" {'; '.join(wrong[:SHOWN])}{more}.",
            hint="The training must not go on from here; please report what stands at these places.",
        )


def _homes(before: Mapping[str, _Lies], was: Mapping[str, _Lies]) -> dict[str, set[str]]:
    """Return for each device of the saved state where the twin has what was saved there."""
    homes: dict[str, set[str]] = {}
    for place, saved in was.items():
        if place in before and not saved.scalar:
            homes.setdefault(saved.device, set()).add(before[place].device)
    return homes


def _tensors(state: Snapshot) -> Iterator[tuple[str, _Lies]]:
    for component in state.components.values():
        for root, value in component.roots.items():
            for place, node in visit(root, value):
                if isinstance(node, Coded) and isinstance(node.v, Dict) and node.v.v and "dtype" in node.v.v:
                    shape = node.v.v.get("shape")
                    flat = not (isinstance(shape, Tuple) and shape.v)
                    yield place, _Lies(str(node.v.v.get("device", CPU)), flat)
