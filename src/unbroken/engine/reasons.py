"""Why a training saves at a clean point, or that it does not.

Of all that may ask for a save the first counts: the signal that ends the process, what somebody has asked for, what is due,
and last a point that is better than those to come. Of several ranks all do what they agree on.

Not promised: that a save is made where one is due. While another is being written only the end of the process is a
reason; all else is asked again at the next point.
"""

from __future__ import annotations

from unbroken.engine.agreement import Agreement
from unbroken.engine.preemption import Preemption
from unbroken.engine.requests import Requests
from unbroken.engine.schedule import Schedule
from unbroken.engine.source import PrefersMoments, Source
from unbroken.engine.world import World
from unbroken.engine.writer import BackgroundWriter

GOOD_MOMENT = "restored quickly from here"
"""Why a save comes before it is due."""


class Reasons:
    """The reasons of one training. Ask `at` once at each point, and `ends` before the save that it names."""

    def __init__(
        self,
        source: Source,
        world: World | None,
        schedule: Schedule,
        requests: Requests,
        writer: BackgroundWriter,
        preemption: Preemption,
    ) -> None:
        self._source = source
        self._schedule = schedule
        self._requests = requests
        self._writer = writer
        self._preemption = preemption
        self._agreement = None if world is None else Agreement(world, schedule)

    def at(self, step: int, episodes: int) -> str:
        """Return why to save at this point, an empty string if there is no reason."""
        wish = self._preemption.note or ("" if self._writer.busy else self._wish(step, episodes))
        if self._agreement is None:
            return wish
        return self._agreement.reason(step, episodes, wish, told=bool(self._preemption.told))

    def ends(self) -> bool:
        """Return whether all ranks end after the save of this point. A process that is alone does not come here then:
        its last save is made by what ends it."""
        return self._agreement is not None and self._agreement.ends(told=bool(self._preemption.told))

    def raised(self, step: int) -> None:
        """The save of this step has raised here; for the other ranks, if there are any, the point is over."""
        if self._agreement is not None:
            self._agreement.raised(step)

    def _wish(self, step: int, episodes: int) -> str:
        reason = self._requests.reason or self._schedule.due(step, episodes)
        if reason or self._agreement is not None or not self._schedule.is_early():
            return reason
        source = self._source
        return GOOD_MOMENT if isinstance(source, PrefersMoments) and source.is_good_moment() else ""
