"""The pen: lent, taken back, lost with whoever had it."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

import pytest

from unbroken.errors import Fenced
from unbroken.format import layout
from unbroken.format.compression import Compression
from unbroken.repo import fencing
from unbroken.repo.pen import Pen
from unbroken.repo.process import current
from unbroken.repo.repository import Repository
from unbroken.repo.retention import plan_retention
from unbroken.repo.run_writer import RunWriter
from unbroken.repo.writer import CheckpointWriter
from unbroken.state.snapshot import Component, Snapshot

from .states import assert_sound, assert_swept, meta, noise, snapshot


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.open(tmp_path, "job", create=True)


def elsewhere(repository: Repository, pen: Pen) -> CheckpointWriter:
    """What the companion does with a pen, here in the same process."""
    return CheckpointWriter.open(
        repository.store,
        repository.job,
        pen,
        compression=Compression(),
        clock=time.time,
        token=lambda: secrets.token_hex(6),
        signing_key=lambda: None,
    )


def numbers(repository: Repository) -> list[tuple[int, int]]:
    return [(commit.step, commit.sequence) for commit in repository.commits()]


def save(writer: RunWriter | CheckpointWriter, repository: Repository, step: int) -> None:
    writer.write(snapshot(noise(3000, step)), meta(step))
    writer.retain(plan_retention(repository.commits(), keep_last=2))


def test_numbers_go_up_whoever_has_the_pen(repository: Repository) -> None:
    with repository.writer() as run:
        save(run, repository, 1)
        for step in (2, 4, 6):
            save(elsewhere(repository, run.lend()), repository, step)
            save(run, repository, step + 1)
        assert numbers(repository) == [(7, 7), (6, 6)]
        assert_sound(repository)
        assert_swept(repository)


def test_what_the_other_has_deleted_is_not_built_on(repository: Repository) -> None:
    with repository.writer() as run:
        run.write(snapshot(noise(3000, 1)), meta(1))
        other = elsewhere(repository, run.lend())
        save(other, repository, 2)
        save(other, repository, 3)  # the first is gone
        run.write(snapshot(noise(3000, 1)), meta(4))
        assert_sound(repository)


def test_births_written_while_the_pen_is_lent_are_kept(repository: Repository) -> None:
    with repository.writer() as run:
        other = elsewhere(repository, run.lend())
        name = run.write_birth(Snapshot(components={"counters": Component("counters")}))
        save(other, repository, 1)
        assert repository.store.get(layout.birth(name))


def test_what_a_lost_pen_still_writes_does_not_count(repository: Repository) -> None:
    with repository.writer() as run:
        save(run, repository, 1)
        dying = elsewhere(repository, run.lend())
        run.lose_pen()
        before = run.epoch
        save(run, repository, 2)
        assert run.epoch == before + 1
        with pytest.raises(Fenced):
            dying.write(snapshot(noise(3000, 3)), meta(3))
        save(run, repository, 4)
        assert [step for step, _ in numbers(repository)] == [4, 2]
        assert_sound(repository)


def test_a_lost_pen_does_not_win_the_run_back_from_another(repository: Repository) -> None:
    with repository.writer() as run:
        run.lend()
        run.lose_pen()
        later = fencing.claim(repository.store, token=lambda: "0" * 12, owner=current(), job="job", time=0.0)
        with pytest.raises(Fenced):
            run.lend()
        assert fencing.read_epochs(repository.store).highest == later.epoch


def test_chunk_lists_can_be_read_while_the_pen_is_lent(repository: Repository) -> None:
    state = snapshot(noise(40 << 20, 1))
    with repository.writer() as run:
        elsewhere(repository, run.lend()).write(state, meta(1))
        ((base,),) = [part.saved.values() for part in state.components.values() if part.saved]
        assert len(run.chunks(base)) == 40
