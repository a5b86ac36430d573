"""`unbroken doctor`: what the next start of a run would do, and why, without doing it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, cast

import typer

from unbroken.cli.guard import EXIT_NO, EXIT_OK, DebugOption, JsonOption
from unbroken.cli.output import show
from unbroken.cli.target import run_of
from unbroken.engine.diagnosis import examine
from unbroken.engine.settings import RESUME_WORDS, Resume, Settings, WorstTier
from unbroken.errors import ConfigError
from unbroken.repo.process import current
from unbroken.repo.retention import Best
from unbroken.repo.roots import is_url
from unbroken.report.diagnosis import diagnosis_data, diagnosis_parts

NAMED_HERE = ("UNBROKEN_ROOT", "UNBROKEN_JOB")
"""Variables that say which run; here the argument does."""


def doctor(
    run: Annotated[str, typer.Argument(help="A run, or a root that holds one.")],
    resume: Annotated[
        str, typer.Option(help="As the script has it: auto, must, never, best or a step.")
    ] = "auto",
    worst_tier: Annotated[
        str, typer.Option("--worst-tier", help="As the script has it: newest, older, rebuilt or fresh.")
    ] = "rebuilt",
    best: Annotated[str, typer.Option(help="The metric of --resume best, as metric:max or metric:min.")] = "",
    trust: Annotated[bool, typer.Option("--trust", help="The script says trust=True.")] = False,
    mirror: Annotated[str, typer.Option(help="The second root that the script names.")] = "",
    json: JsonOption = False,
    debug: DebugOption = False,
) -> int:
    """Print what the next start would do: how the last process ended, which checkpoint would be taken and what stands
    against the others, who works on the run, whether a key is needed, what was left over, and the room on the disk.

    Nothing is written or locked, and a training that works on the run is not disturbed. Every byte of the checkpoint
    that would be taken is read. Exit status 0 if a start would go on, 1 if it would stop.
    """
    from unbroken.capture.weights import WEIGHTS, not_finite  # numpy, which most commands do without

    target = run_of(run)
    settings = _settings(target.where, resume, worst_tier, best, trust, mirror)
    found = examine(target.repository, settings, here=current(), weights=WEIGHTS, sick=not_finite)
    show(*diagnosis_parts(found), data=diagnosis_data(found), json=json)
    return EXIT_OK if found.goes_on else EXIT_NO


def _settings(where: str, resume: str, worst_tier: str, best: str, trust: bool, mirror: str) -> Settings:
    root, _, job = (where if is_url(where) else str(Path(where).resolve())).rpartition("/")
    if resume not in RESUME_WORDS and not resume.isdecimal():
        raise ConfigError(
            f"--resume is one of {', '.join(RESUME_WORDS)} or a step number, not {resume!r}.",
            hint="Leave it out for auto.",
        )
    metric, _, mode = best.partition(":")
    if mode not in ("", "max", "min"):
        raise ConfigError(f"--best {best!r} is no metric.", hint="Write metric:max or metric:min.")
    settings = Settings(
        root=root,
        job=job,
        resume=cast("Resume", int(resume) if resume.isdecimal() else resume),
        worst_tier=cast("WorstTier", worst_tier),
        best=Best(metric, "min" if mode == "min" else "max") if metric else None,
        trust=trust,
        mirror=mirror,
    )
    return settings.overridden({name: text for name, text in os.environ.items() if name not in NAMED_HERE})
