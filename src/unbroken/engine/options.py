"""The settings as the keyword arguments that every face takes, listed once.

A face is what a person calls: `Run`, a callback, `start`. It takes `**options: Unpack[Options]`, so that a type
checker and an editor know every setting, and `takes_settings` writes them into the signature that `help` shows.

Invariant: `Options` has every field of `Settings` but `root` and `job`, which faces name in their own words.

Not promised: that a face can do with each of them what another one does. What makes no sense is refused by name.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypedDict, TypeVar, cast

from unbroken.engine.configuration.names import meant
from unbroken.engine.configuration.sources import root_said
from unbroken.engine.configuration.words import CODE
from unbroken.engine.monitoring.target import Monitoring
from unbroken.engine.schedule import Every
from unbroken.engine.settings import CodecChoice, Resume, Settings, WorstTier, WriterKind
from unbroken.errors import ConfigError
from unbroken.format.manifest import DocumentFormat
from unbroken.repo.retention import Best

Face = TypeVar("Face", bound=Callable[..., object])


class StoringOptions(TypedDict, total=False):
    """What says how checkpoints lie in a run and which of them stay."""

    keep_last: int
    best: Best | str | None
    keep_first: bool
    document_format: DocumentFormat
    compression: CodecChoice
    compression_level: int | None


class Options(StoringOptions, total=False):
    """Every setting of a run but its place. What they mean stands at `Settings`."""

    every: Every | int | str
    resume: Resume
    worst_tier: WorstTier
    strict: bool
    allow_changed: Collection[str]
    trust: bool | Collection[str]
    staging: int | None
    writer: WriterKind
    grace: float
    signals: Collection[str]
    exit_code: int
    mirror: str | os.PathLike[str]
    mirror_keep_last: int
    monitoring: Monitoring | str | None
    trackers: Collection[str]
    journal: bool
    incremental: bool
    validate: bool
    sync_timeout: float | None


STORING = frozenset(StoringOptions.__annotations__)
OPTIONS = frozenset(Options.__annotations__)


def settings_of(
    face: str,
    root: str | os.PathLike[str] | None,
    options: Mapping[str, object],
    *,
    job: str = "",
    known: Collection[str] = OPTIONS,
    refused: Mapping[str, str] | None = None,
) -> Settings:
    """Return the settings that a face was called with. Where code gives no root, `UNBROKEN_ROOT` or the
    configuration file does.

    `refused` says of settings why this face does not take them.

    Raises:
        ConfigError: there is no option of that name, it is refused here, its value cannot be used, or nothing says
            where the run lies.
    """
    for name in options:
        if refused and name in refused:
            raise ConfigError(f"{face} takes no {name}: {refused[name]}.", hint="Leave it out.")
        if name not in known:
            raise _unknown(face, name, frozenset(known).difference(refused or ()))
    given: dict[str, Any] = {**options, "job": job} if job else {**options}
    if root is not None:
        return Settings(root=root, **given)
    said = root_said(os.environ)
    if said is None:
        raise ConfigError(
            f"{face} is not told where the run lies.",
            hint='Give a root, for example "runs", set UNBROKEN_ROOT, or write storage_path into unbroken.yaml.',
        )
    made = Settings(root=cast("str", said.value), **given)
    return made.told(dict.fromkeys(given, CODE), "")


def divided(given: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Return which keywords are settings, and which name objects to be tracked.

    Raises:
        ConfigError: a plain value, which cannot be tracked, has nearly the name of a setting.
    """
    options = {name: value for name, value in given.items() if name in OPTIONS}
    objects = {name: value for name, value in given.items() if name not in OPTIONS}
    for name, value in objects.items():
        plain = value is None or isinstance(value, (bool, int, float, str))
        if plain and (near := meant(name, OPTIONS)):
            raise ConfigError(f"There is no setting {name!r}.", hint=f"Did you mean {near}?")
    return options, objects


def _unknown(face: str, name: str, known: Collection[str]) -> ConfigError:
    near = meant(name, known)
    hint = f"Did you mean {near}?" if near else f"There are: {', '.join(sorted(known))}."
    return ConfigError(f"{face} has no option {name!r}.", hint=hint)


def takes_settings(
    *, known: Collection[str] = OPTIONS, without: Collection[str] = ()
) -> Callable[[Face], Face]:
    """Return a decorator that puts every setting with its default into the signature of a function, in the place
    of its `**options`; of settings and objects together, before the objects."""

    def decorate(face: Face) -> Face:
        signature = inspect.signature(face)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        (rest,) = (p for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD)
        taken = {p.name for p in own}
        added = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=_default(field.name),
                annotation=field.type,
            )
            for field in fields(Settings)
            if field.init and field.name in known and field.name not in taken and field.name not in without
        ]
        ends = [rest] if rest.name != "options" else []
        face.__signature__ = signature.replace(parameters=[*own, *added, *ends])  # type: ignore[attr-defined]
        return face

    return decorate


def _default(name: str) -> object:
    (field,) = (field for field in fields(Settings) if field.name == name)
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default
