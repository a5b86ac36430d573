"""A trial of a checkpoint: a person's function looks at the restored training and may reject it.

```
restored -> evaluated -> accepted: restored once more, and compared with the first time
                      -> rejected: passed over with its reason, the next older one is restored
```

Invariant: the trial leaves no trace. Whatever the function did to environments, generators and weights, the training
goes on from the accepted checkpoint as if nobody had looked; what a second restore cannot put back is an error that names
it. Where everything is rejected and the run may start anew, it does so from the objects as the script has built them.

Not promised: what lies outside the state (files that the function writes); and trials of several ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from unbroken.engine.recovery import Tier
from unbroken.engine.source import Source
from unbroken.engine.volatile import without_clocks
from unbroken.errors import ConfigError, Rejected, RestoreFailed
from unbroken.state.diff import compare
from unbroken.state.snapshot import Snapshot

SHOWN = 5

Evaluate: TypeAlias = Callable[[], object]
"""Returns None, True or an empty string for a checkpoint that is good enough; False, or why it is not."""


class WarmUpTrial:
    """Tries the checkpoints of one start: after a fall-back, or with `always` whatever it came to."""

    def __init__(self, evaluate: Evaluate, *, always: bool = False) -> None:
        if not callable(evaluate):
            raise ConfigError(
                f"A warm-up is a function that looks at the restored training, not {evaluate!r}.",
                hint="Give a function that returns None, or why the checkpoint is to be rejected.",
            )
        self._evaluate = evaluate
        self.always = always
        self.twin: Snapshot | None = None
        """The objects as the script has built them, where the run may start anew."""
        self.used = False
        """Whether a trial has been made, so that the objects are not as the script has built them."""

    def anew(self) -> WarmUpTrial:
        """Return the same trial for another start."""
        return WarmUpTrial(self._evaluate, always=self.always)

    def is_due(self, tier: Tier) -> bool:
        """Whether a checkpoint of this tier is tried."""
        return self.always or tier in (Tier.OLDER, Tier.REBUILT)

    def run(self) -> None:
        """Try what has just been restored.

        Raises:
            Rejected: it is not good enough.
            RestoreFailed: the function has failed, which says nothing of the checkpoint.
            ConfigError: it returned something else than an answer.
        """
        self.used = True
        try:
            answer = self._evaluate()
        except Exception as error:
            raise RestoreFailed(
                f"The warm-up evaluation has failed: {type(error).__name__}: {error}.",
                hint="Mend it, or start without it; no checkpoint was touched.",
            ) from error
        if answer is None or answer is True or answer == "":
            return
        if answer is not False and not isinstance(answer, str):
            raise ConfigError(
                f"The warm-up evaluation returned {answer!r}.",
                hint="Return None for a checkpoint that is good enough, else a sentence that says why it is not.",
            )
        raise Rejected(f"the warm-up evaluation rejects it{f': {answer}' if answer else ''}")


def check_same(source: Source, before: Snapshot, after: Snapshot) -> None:
    """Compare the objects after the restore that follows a trial with those before it, but for the contents of arrays,
    which every restore compares with what was saved.

    Raises:
        RestoreFailed: something is left of the trial.
    """
    found = without_clocks(source, before, compare(before, after, contents=False))
    if found:
        shown = "; ".join(str(difference) for difference in found[:SHOWN])
        raise RestoreFailed(
            f"The warm-up evaluation left behind what a restore cannot put back: {shown}.",
            hint="Let it work on objects of its own (an environment made for it), or start without it.",
        )
