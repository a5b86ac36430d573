"""Which rollouts changed after which mark, and since when each names which image: what an export is made from.

Marks grow with every change. What changed after a mark can be told as long as nothing since then was forgotten: `knows`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from unbroken.adapters.nemo_gym.media import Media


class Changes:
    """Of one agent, in one process. `mark` is that of the newest change."""

    def __init__(self, mark: int, rollouts: Mapping[str, Iterable[bytes]]) -> None:
        self.first = self.mark = mark
        self._at: dict[str, int] = {}
        """Those that changed last stand last."""
        self._named: dict[str, dict[str, int]] = {}
        self._since = mark
        self.begin(rollouts)

    def begin(self, rollouts: Mapping[str, Iterable[bytes]]) -> None:
        """Take these rollouts, each with its bodies, for all that there are; nothing is known of what was before."""
        self._since = self.mark
        self._at = dict.fromkeys(rollouts, self.mark)
        self._named = {rollout: dict.fromkeys(_in(bodies), self.mark) for rollout, bodies in rollouts.items()}

    def note(self, rollout: str, *bodies: bytes) -> None:
        """A rollout has changed, and has these bodies in addition."""
        self._touch(rollout)
        named = self._named.setdefault(rollout, {})
        for digest in _in(bodies):
            named.setdefault(digest, self.mark)

    def state(self, rollout: str, bodies: Iterable[bytes]) -> None:
        """A rollout has changed, and has these bodies only.

        An image that it names no more is forgotten: who carries the records may let it go, and needs it again if it is
        named once more.
        """
        self._touch(rollout)
        before = self._named.get(rollout, {})
        self._named[rollout] = {digest: before.get(digest, self.mark) for digest in _in(bodies)}

    def drop(self, rollout: str) -> None:
        """A rollout is not kept any more."""
        self._touch(rollout)
        self._named.pop(rollout, None)

    def knows(self, mark: int) -> bool:
        """Whether all that changed after `mark` can be told."""
        return self._since <= mark <= self.mark

    def after(self, mark: int) -> list[str]:
        """Return the rollouts that changed after `mark`, in the order of their last changes."""
        found: list[str] = []
        for rollout, at in reversed(self._at.items()):
            if at <= mark:
                break
            found.append(rollout)
        return found[::-1]

    def images(self, rollout: str, *, after: int) -> list[str]:
        """Return the digests of images that a rollout names since after this mark."""
        return [digest for digest, at in self._named.get(rollout, {}).items() if at > after]

    def settled(self, mark: int, kept: Collection[str]) -> None:
        """All up to `mark` is in a durable checkpoint: forget which rollouts are not kept any more."""
        if self.knows(mark):
            self._at = {rollout: at for rollout, at in self._at.items() if at > mark or rollout in kept}
            self._since = mark

    def __len__(self) -> int:
        return len(self._at)

    def _touch(self, rollout: str) -> None:
        self.mark += 1
        self._at.pop(rollout, None)
        self._at[rollout] = self.mark


def _in(bodies: Iterable[bytes]) -> dict[str, None]:
    return {digest: None for body in bodies for digest in sorted(Media.named(body))}
