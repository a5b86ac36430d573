"""The roots of a checkpoint as one rank has them, read from its documents only as they are asked for."""

from __future__ import annotations

from unbroken.errors import UnbrokenError
from unbroken.format.records import Commit
from unbroken.repo.repository import Repository
from unbroken.state.nodes import Value
from unbroken.state.parts import split_name


class Roots:
    """Finds a root, and the component that holds it. No array is read, and the small documents come first.

    A document that cannot be read is passed over, since what is looked for is likely in another one.
    """

    def __init__(self, repository: Repository, commit: Commit, rank: int) -> None:
        self._repository = repository
        self._commit = commit
        entries = sorted(repository.manifest(commit).documents.values(), key=lambda entry: entry.size)
        self._unread = [
            entry.component for entry in entries if split_name(entry.component)[1] in (None, rank)
        ]
        self._found: dict[str, tuple[str, Value]] = {}
        self._damage: UnbrokenError | None = None

    def of(self, component: str) -> dict[str, Value]:
        """Return the roots of one component, by its full name.

        Raises:
            CorruptObject: its document is damaged or missing.
        """
        return self._repository.document(self._commit, component).roots

    def find(self, place: str) -> Value:
        """Return the root at a place, None if there is none."""
        return self._at(place)[1]

    def home(self, place: str) -> str:
        """Return the full name of the component with a root at this place, empty if none has.

        Raises:
            UnbrokenError: none of those that could be read has one, and one could not be read.
        """
        name = self._at(place)[0]
        if not name and self._damage is not None:
            raise self._damage
        return name

    def _at(self, place: str) -> tuple[str, Value]:
        while place not in self._found and self._unread:
            component = self._unread.pop(0)
            try:
                roots = self.of(component)
            except UnbrokenError as error:
                self._damage = error
                continue
            self._found.update({at: (component, root) for at, root in roots.items()})
        return self._found.get(place, ("", None))
