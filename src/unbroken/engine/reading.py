"""What an engine tells of its run without touching a live object."""

from __future__ import annotations

from collections.abc import Collection

from unbroken.engine.settings import Settings
from unbroken.engine.share import commit_of, load_share, picked
from unbroken.engine.world import World
from unbroken.errors import ConfigError
from unbroken.repo.repository import Repository
from unbroken.state.snapshot import Snapshot


class ReadsRun:
    """The half of an engine that only reads. It can be used before `resume` and after `close`."""

    settings: Settings
    world: World | None

    def load(self, step: int | None = None, *, components: Collection[str] | None = None) -> Snapshot:
        """Return the newest saved state, or that of `step`; all of it or only some components.

        Every digest is checked. Touches no live object.

        Raises:
            ConfigError: there is no such checkpoint.
            CorruptObject: it is damaged.
        """
        repository = self._repository(create=False)
        chosen = commit_of(repository, step)
        if self.world is None and not repository.manifest(chosen).ranks:
            return repository.load(chosen, components)
        return picked(load_share(repository, chosen, self.world).snapshot, components)

    def latest_step(self) -> int | None:
        """Return the step of the newest checkpoint that is committed, or None if there is none."""
        try:
            commits = self._repository(create=False).commits()
        except ConfigError:
            return None
        return commits[0].step if commits else None

    def _repository(self, *, create: bool) -> Repository:
        return Repository.open(self.settings.root, self.settings.job, create=create)
