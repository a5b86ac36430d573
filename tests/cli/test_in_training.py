"""The commands that read, on a run that goes on training between any two of their reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.repo.training import Trained, at_read, compact, save_and_keep_one, trained
from unbroken.cli.verify import tables
from unbroken.errors import ConfigError, CorruptObject
from unbroken.format import layout
from unbroken.inspection.checkpoint import describe
from unbroken.inspection.listing import checkpoints
from unbroken.inspection.overview import RunOverview, overview_of
from unbroken.inspection.target import Target
from unbroken.inspection.verification import verified
from unbroken.store.base import ByteStore

pytestmark = pytest.mark.parametrize("train", [save_and_keep_one, compact])
Train = Callable[[ByteStore], None]


def disturbed(train: Train, do: Callable[[Target], object], *, every: int = 1) -> Iterator[Target]:
    """Yield a run for every read that `do` makes of it, or for a choice: the training goes on right before that read."""
    calm = trained(train)
    do(Target(calm, "run"))
    assert isinstance(calm.store, Trained)
    for at in range(0, calm.store.reads, every):
        yield Target(trained(train, at_read(at)), "run")


def test_verify_passes_over_what_is_gone_and_says_so(train: Train) -> None:
    passed_over = 0
    for target in disturbed(train, verified):
        result = verified(target)
        assert result.intact, result
        assert bool(result.passed_over) == any("Passed over" in str(part) for part in tables(result))
        passed_over += len(result.passed_over)
    assert passed_over > 0


def test_ls_lists_what_is_there(train: Train) -> None:
    for target in disturbed(train, lambda target: checkpoints(target.repository)):
        found = checkpoints(target.repository)
        assert found
        assert [listed.problem for listed in found if listed.problem] == []


def test_the_overview_is_of_what_is_there_and_calls_nothing_damaged(train: Train) -> None:
    def look(target: Target) -> RunOverview:
        return overview_of(target, now=0.0)

    for target in disturbed(train, look, every=11):
        found = look(target)
        assert found.checkpoints
        assert [row.problem for row in found.checkpoints if row.problem] == []


@pytest.mark.parametrize("whole", [False, True])
def test_the_newest_that_can_be_read_is_read(train: Train, whole: bool) -> None:
    def read(target: Target) -> object:
        if whole:
            return target.read(target.repository.load)
        return target.read(lambda commit: describe(target, commit))

    for target in disturbed(train, read):
        assert read(target)


def test_a_named_one_that_is_gone_is_said_to_be(train: Train) -> None:
    repository = trained(train)
    named = Target(repository, "run", repository.commits()[-1])
    train(repository.store)
    with pytest.raises(ConfigError, match="was deleted while it was read"):
        named.read(repository.load)


def test_what_is_damaged_is_not_gone(train: Train) -> None:
    target = Target(trained(train), "run")
    newest = target.checkpoint()
    target.repository.store.delete(f"{newest.directory}/{layout.MANIFEST}")
    assert not verified(target).intact
    with pytest.raises(CorruptObject, match="is missing"):
        target.read(target.repository.load)
