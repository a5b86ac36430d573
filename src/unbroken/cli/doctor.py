"""`unbroken doctor`: what the next start of a run would do, and why, without doing it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, cast

import typer

from unbroken.cli.guard import EXIT_NO, EXIT_OK, DebugOption, JsonOption
from unbroken.cli.output import show
from unbroken.engine.diagnosis import examine
from unbroken.engine.mirroring import mirror_contents
from unbroken.engine.settings import RESUME_WORDS, Resume, Settings, WorstTier
from unbroken.errors import ConfigError
from unbroken.inspection.target import default_root, run_named, run_of
from unbroken.repo.process import current
from unbroken.repo.repository import Repository
from unbroken.repo.retention import Best
from unbroken.repo.roots import is_url
from unbroken.report.diagnosis import diagnosis_data, diagnosis_parts
from unbroken.store.memory import MemoryStore

NAMED_HERE = ("UNBROKEN_ROOT", "UNBROKEN_JOB")
"""Variables that say which run; here the argument does."""


def doctor(
    run: Annotated[
        str,
        typer.Argument(help="A run, or a root that holds one. Default: as variables and unbroken.yaml say."),
    ] = "",
    resume: Annotated[
        str, typer.Option(help="As the script has it: auto, must, never, best or a step.")
    ] = "",
    worst_tier: Annotated[
        str, typer.Option("--worst-tier", help="As the script has it: newest, older, rebuilt or fresh.")
    ] = "",
    best: Annotated[str, typer.Option(help="The metric of --resume best, as metric:max or metric:min.")] = "",
    trust: Annotated[bool, typer.Option("--trust", help="The script says trust=True.")] = False,
    mirror: Annotated[str, typer.Option(help="The second root that the script names.")] = "",
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """Print what the next start would do: how the last process ended, which checkpoint would be taken and what stands
    against the others, who works on the run, whether a key is needed, what was left over, and the room on the disk.

    Nothing is written or locked, and a training that works on the run is not disturbed. Every byte of the checkpoint
    that would be taken is read. What is not said here counts as `unbroken.yaml` and the variables say it. Exit status 0
    if a start would go on, 1 if it would stop.
    """
    from unbroken.capture.weights import WEIGHTS, not_finite  # numpy, which most commands do without

    given = _given(resume, worst_tier, best, trust, mirror)
    repository, settings = _run(run, given, os.environ)
    found = examine(repository, settings, here=current(), weights=WEIGHTS, sick=not_finite)
    show(*diagnosis_parts(found), data=diagnosis_data(found), json=json)
    return EXIT_OK if found.goes_on else EXIT_NO


def _run(
    run: str, given: Mapping[str, object], environment: Mapping[str, str]
) -> tuple[Repository, Settings]:
    """Return the run that is meant, and what a start of it is told.

    Raises:
        ConfigError: there is none, neither here nor in its mirror.
    """
    job = "" if run else environment.get("UNBROKEN_JOB", "")
    place = run or default_root()
    try:
        target = run_of(run_named(place, job) if job else place)
    except ConfigError:
        lost = _lost(place, job, given, environment)
        if lost is None:
            raise
        # Of what was deleted the mirror tells; that nothing is here is all that the first place has to say.
        return Repository(MemoryStore(), lost.job), lost
    return target.repository, _settings(target.where, given, environment)


def _lost(
    place: str, job: str, given: Mapping[str, object], environment: Mapping[str, str]
) -> Settings | None:
    """Return the settings of a run of which its mirror has checkpoints, and of which nothing is left here."""
    for where in [f"{place}/{job}"] if job else [place, f"{place.rstrip('/')}/{Path(place).resolve().name}"]:
        settings = _settings(where, given, environment)
        there = mirror_contents(settings)
        if there is not None and (there.commits or there.problem):
            return settings
    return None


def _settings(where: str, given: Mapping[str, object], environment: Mapping[str, str]) -> Settings:
    root, _, job = (where if is_url(where) else str(Path(where).resolve())).rpartition("/")
    settings = Settings(root=root, job=job, **given)  # type: ignore[arg-type]
    return settings.overridden({name: text for name, text in environment.items() if name not in NAMED_HERE})


def _given(resume: str, worst_tier: str, best: str, trust: bool, mirror: str) -> dict[str, object]:
    """Return the settings that options give; the others are for the file and the variables to say."""
    given: dict[str, object] = {}
    if resume:
        if resume not in RESUME_WORDS and not resume.isdecimal():
            raise ConfigError(
                f"--resume is one of {', '.join(RESUME_WORDS)} or a step number, not {resume!r}.",
                hint="Leave it out for auto.",
            )
        given["resume"] = cast("Resume", int(resume) if resume.isdecimal() else resume)
    if worst_tier:
        given["worst_tier"] = cast("WorstTier", worst_tier)
    if best:
        given["best"] = _best(best)
    if trust:
        given["trust"] = True
    if mirror:
        given["mirror"] = mirror
    return given


def _best(text: str) -> Best:
    try:
        return Best.parse(text)
    except ConfigError as error:
        raise ConfigError(f"--best {error.message}", hint=error.hint) from error
