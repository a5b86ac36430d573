"""What a person can set, checked before anything happens.

Precedence: defaults < configuration file < code < environment. Every setting has a variable `UNBROKEN_<NAME>`, so
that a script runs elsewhere, or under `unbroken prove`, without being edited. Which came from where is decided in
`configuration/`.

Not promised: that the root can be written to. The store finds that out when the run is opened.
"""

from __future__ import annotations

import math
import os
import re
import signal
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar, cast

from unbroken.engine.configuration.file import Said
from unbroken.engine.configuration.sources import configuration, said_beside
from unbroken.engine.configuration.words import CODE, DEFAULT, NONE
from unbroken.engine.configuration.words import RESUME_WORDS as RESUME_WORDS  # noqa: PLC0414 - what `resume` may be
from unbroken.engine.monitoring.target import Monitoring
from unbroken.engine.schedule import DEFAULT_EVERY, MOST, Every
from unbroken.engine.trackers.place import KNOWN
from unbroken.errors import ConfigError, shown
from unbroken.format.compression import BlobCodec, Compression
from unbroken.format.manifest import DocumentFormat
from unbroken.repo.names import check_job
from unbroken.repo.retention import Best
from unbroken.repo.roots import DirectoryRoot, Root, check_apart, is_url, root_of
from unbroken.state.shared import unsupported

Resume: TypeAlias = "Literal['auto', 'must', 'never', 'best'] | int"
WorstTier: TypeAlias = Literal["newest", "older", "rebuilt", "fresh"]
WriterKind: TypeAlias = Literal["thread", "process"]
CodecChoice: TypeAlias = Literal["auto", "none", "zstd", "gzip"]
_Class = TypeVar("_Class")

TIERS = ("newest", "older", "rebuilt", "fresh")
FORMATS = ("json", "msgpack")
WRITERS = ("thread", "process")
CODECS = ("auto", "none", "zstd", "gzip")
MOST_SECONDS = sys.float_info.max


def _noting(cls: type[_Class]) -> type[_Class]:
    """Let instances note which of their fields they were given."""
    bare: Callable[..., None] = cls.__init__

    @wraps(bare)
    def init(self: Settings, **given: object) -> None:
        bare(self, **given)
        self.told(dict.fromkeys(given, CODE), "")

    cls.__init__ = init  # type: ignore[assignment]
    return cls


@_noting
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one run is saved and resumed.

    `job` names the run below `root`; left empty it is taken from the last part of `root`, and stays
    the same when `UNBROKEN_ROOT` moves the root elsewhere.

    Raises:
        ConfigError: a setting is of another kind or beyond its bounds; the message names it.

    >>> Settings(root="runs/dqn").job
    'dqn'
    """

    root: str | os.PathLike[str]
    job: str = ""
    every: Every | int | str = DEFAULT_EVERY
    keep_last: int = 5
    best: Best | str | None = None
    """The metric by which one checkpoint more stays: `Best("loss", "min")`, or the same as a text, "loss:min"."""
    resume: Resume = "auto"
    worst_tier: WorstTier = "rebuilt"
    strict: bool = False
    allow_changed: Collection[str] = field(default_factory=frozenset[str])
    trust: bool | Collection[str] = False
    """Whether pickled parts of a checkpoint without a valid signature may be loaded; or the names of the classes, as
    `module.Class`, that may stand in them, and no others."""
    keep_first: bool = False
    document_format: DocumentFormat = "json"
    staging: int | None = None
    """Bytes that the copy of a snapshot may take in memory; None for half of what is free."""
    writer: WriterKind = "thread"
    """What writes checkpoints: a thread, or a process of its own that a kill of the training does not reach."""
    grace: float = 30.0
    """Seconds that a save that is asked for, or a process that is told to end, may wait for its clean point. Before
    what took longer the last time, a copy of the state is held ready; 0: always. That is done in trainings of
    Stable-Baselines3 only: nobody else says what comes before the next clean point."""
    signals: Collection[str] = ("SIGTERM", "SIGUSR1", "SIGINT")
    """On these the run saves and its process ends; one for which the script has a handler of its own stays with it."""
    exit_code: int = 75
    """Exit status, from 1 to 255, of a process that was told to end and has saved: 75 is "try again" (EX_TEMPFAIL)."""
    mirror: str | os.PathLike[str] = ""
    """A second root, a directory or a URL, to which checkpoints are copied once they are committed; "" or "none" for none."""
    mirror_keep_last: int = 3
    """So many of the newest stay in the mirror."""
    monitoring: Monitoring | str | None = None
    """Where metrics go: `Monitoring(port=9109)`, or the same as a text, "port=9109"."""
    trackers: Collection[str] = KNOWN
    """In which trackers checkpoints and restarts are marked, if the script uses them; () for none."""
    journal: bool = False
    """Whether the actions since the last reset of each environment are kept beside the checkpoints, so that
    environments can be rebuilt where a checkpoint holds no usable state of them."""
    compression: CodecChoice = "auto"
    """Codec of what is written: "auto" takes zstd, on a local disk only where that is quicker than to write more;
    "zstd" and "gzip" take that wherever it makes something smaller; "none" compresses nothing."""
    compression_level: int | None = None
    """Level of the codec; None for its default. zstd has 1 to 22, gzip 1 to 9."""
    incremental: bool = True
    """Whether of buffers only rows that are new are captured. False captures all of them at every save; what is in
    the run already is not written twice even then."""
    validate: bool = True
    """Whether the state is read back after a restore and compared with what was saved."""
    sync_timeout: float | None = None
    """Seconds that one of several processes may keep the others waiting in a save; None for what the world says."""
    origins: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """Where each value comes from: "code", "file:line" or a variable. Before the file is read, those given in code."""
    config_file: str = field(init=False, repr=False, compare=False)
    """The configuration file that was read, if one was."""

    def __post_init__(self) -> None:
        job: object = self.job
        if not isinstance(job, str):
            raise ConfigError(f"job must be a name, not {shown(job)}.", hint="Leave it out for the default.")
        object.__setattr__(self, "job", check_job(self.job or _job_from(root_of(self.root))))
        object.__setattr__(self, "every", Every.of(self.every))
        object.__setattr__(self, "best", _checked_best(self.best))
        object.__setattr__(self, "monitoring", _checked_monitoring(self.monitoring))
        if self.mirror == NONE:
            object.__setattr__(self, "mirror", "")
        elif self.mirror != "":
            check_apart(self.root, self.mirror, self.job)
        if isinstance(self.allow_changed, str):
            raise ConfigError(
                f"allow_changed must be a set of names, not {shown(self.allow_changed)}.",
                hint=f"Write allow_changed={{{shown(self.allow_changed)}}}.",
            )
        object.__setattr__(
            self,
            "allow_changed",
            frozenset(_names("allow_changed", self.allow_changed, example='{"n_envs"}')),
        )
        _whole("keep_last", self.keep_last, least=1)
        if self.staging is not None:
            _whole("staging", self.staging, least=0)
        if isinstance(self.resume, str):
            _one_of("resume", self.resume, RESUME_WORDS, " or a step number")
        else:
            _whole("resume", self.resume, least=0)
        _check_grace(self.grace)
        _one_of("worst_tier", self.worst_tier, TIERS)
        _one_of("document_format", self.document_format, FORMATS)
        _one_of("writer", self.writer, WRITERS)
        if self.writer == "process" and (reason := unsupported()):
            raise ConfigError(
                f'writer="process" needs memory that two processes share, and {reason}.',
                hint='Use writer="thread", or Linux.',
            )
        _whole("exit_code", self.exit_code, least=1, most=255)
        _whole("mirror_keep_last", self.mirror_keep_last, least=1)
        _one_of("compression", self.compression, CODECS)
        if self.compression_level is not None:
            _whole("compression_level", self.compression_level, least=1)
            if self.compression == "none":
                raise ConfigError(
                    'compression="none" has no compression_level.',
                    hint="Leave the level out, or name a codec.",
                )
        self.codec  # noqa: B018 - raises where the codec has no such level
        object.__setattr__(self, "signals", _checked_signals(self.signals))
        object.__setattr__(self, "trackers", _checked_trackers(self.trackers))
        if not isinstance(self.trust, bool):
            object.__setattr__(self, "trust", _checked_classes(self.trust))
        if self.sync_timeout is not None:
            check_seconds("sync_timeout", self.sync_timeout)
        for name in ("strict", "keep_first", "journal", "incremental", "validate"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(
                    f"{name} must be True or False, not {shown(getattr(self, name))}.",
                    hint="Leave it out for the default.",
                )
        if self.resume == "best" and self.best is None:
            raise ConfigError(
                'resume="best" needs a metric to choose by.', hint='Give best="eval/mean_reward:max".'
            )

    @property
    def where(self) -> str:
        """Where the run lies: a path, or a URL."""
        text = os.fspath(self.root)
        return root_of(text).run(self.job) if is_url(text) else str(Path(text).expanduser() / self.job)

    @property
    def places(self) -> tuple[str, ...]:
        """The directories in which the run and its mirror lie; buckets are none."""
        roots = (os.fspath(self.root), os.fspath(self.mirror))
        found = [root_of(text) for text in roots if text]
        return tuple(root.run(self.job) for root in found if isinstance(root, DirectoryRoot))

    @property
    def interval(self) -> Every:
        """`every`, as an interval whatever was given."""
        return Every.of(self.every)

    @property
    def best_by(self) -> Best | None:
        """`best`, as a metric whatever was given.

        Raises:
            ConfigError: it names no metric.
        """
        return _checked_best(self.best)

    @property
    def metrics(self) -> Monitoring | None:
        """`monitoring`, as places whatever was given.

        Raises:
            ConfigError: it names no place.
        """
        return _checked_monitoring(self.monitoring)

    @property
    def says(self) -> tuple[str, ...]:
        """What the line of a start says of these settings."""
        return (f"settings from {self.config_file}",) if self.config_file else ()

    @property
    def codec(self) -> Compression:
        """What `compression` and its level mean to who writes."""
        codec = {"none": BlobCodec.RAW, "gzip": BlobCodec.GZIP}.get(self.compression, BlobCodec.ZSTD)
        return Compression(codec, self.compression_level, by_speed=self.compression == "auto")

    def overridden(self, environment: Mapping[str, str]) -> Settings:
        """Return these settings with what the configuration file says of those that were not given in code, and with
        those that `UNBROKEN_*` variables replace. Once that is done, nothing but a variable changes any.

        Raises:
            ConfigError: the file or a variable cannot be read; the message names it.
        """
        found = None if len(self.origins) == len(NAMES) else configuration(environment)
        said = said_beside(self.origins, found, environment)
        if not said and found is None:
            return self
        made = _replaced(self, said)
        if found is not None:
            found.check_root(os.fspath(made.root))
        origins = {**dict.fromkeys(NAMES, DEFAULT), **self.origins}
        origins.update({name: one.origin for name, one in said.items()})
        return made.told(origins, self.config_file if found is None else found.name)

    def changed(self, **values: object) -> Settings:
        """Return these settings with some others, as if code had given those from the start.

        `dataclasses.replace` makes settings of which code has given every one, so that no file adds to them.
        """
        made = replace(self, **values)  # type: ignore[arg-type]
        return made.told({**self.origins, **dict.fromkeys(values, CODE)}, self.config_file)

    def forgotten(self, name: str) -> None:
        """Let the configuration file decide about `name`, as if code had not given it."""
        self.told(
            {other: origin for other, origin in self.origins.items() if other != name}, self.config_file
        )

    def told(self, origins: Mapping[str, str], config_file: str) -> Settings:
        """Return these settings themselves, with another account of where they come from."""
        object.__setattr__(self, "origins", dict(origins))
        object.__setattr__(self, "config_file", config_file)
        return self


NAMES = tuple(field.name for field in fields(Settings) if field.init)


def _replaced(settings: Settings, said: Mapping[str, Said]) -> Settings:
    """Return the settings with these values; one that cannot be used is blamed on where it stands."""
    if not said:
        return replace(settings)
    try:
        return replace(settings, **_values(said))  # type: ignore[arg-type]
    except ConfigError as error:
        raise ConfigError(f"{_blamed(settings, said)}: {error.message}", hint=error.hint) from error


def _blamed(settings: Settings, said: Mapping[str, Said]) -> str:
    """Return the origin of the value that cannot be used by itself, or all of them if each can."""
    for name, one in said.items():
        try:
            replace(settings, **_values({name: one}))  # type: ignore[arg-type]
        except ConfigError:
            return one.origin
    return ", ".join(dict.fromkeys(one.origin for one in said.values()))


def _values(said: Mapping[str, Said]) -> dict[str, object]:
    return {name: one.value for name, one in said.items()}


def _job_from(root: Root) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", root.name).lstrip("._-")
    return name[:128] or "run"


def _whole(name: str, value: object, *, least: int, most: int = MOST) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        bounds = f"of at least {least}" if most == MOST else f"from {least} to {most}"
        raise ConfigError(
            f"{name} must be a whole number {bounds}, not {shown(value)}.",
            hint="Leave it out for the default.",
        )


def check_seconds(name: str, value: object) -> None:
    """Raise ConfigError where this is no number of seconds that one can wait."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MOST_SECONDS:
        raise ConfigError(
            f"{name} must be a number of seconds above zero, not {shown(value)}.",
            hint="Leave it out for the default.",
        )


def _check_grace(value: object) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not (0 <= value <= MOST_SECONDS or value == math.inf)
    ):
        raise ConfigError(
            f"grace must be a number of seconds of at least 0, not {shown(value)}.",
            hint="Leave it out for 30 seconds; to hold nothing ready, give float('inf').",
        )


def _checked_best(best: object) -> Best | None:
    if best is None or isinstance(best, Best):
        return best
    if not isinstance(best, str):
        raise ConfigError(
            f"best must say a metric, not {shown(best)}.",
            hint='Write best="eval/mean_reward:max", or Best(…).',
        )
    return None if best == NONE else Best.parse(best)


def _checked_monitoring(monitoring: object) -> Monitoring | None:
    if monitoring is None or isinstance(monitoring, Monitoring):
        return monitoring
    if not isinstance(monitoring, str):
        raise ConfigError(
            f"monitoring must say where metrics go, not {shown(monitoring)}.",
            hint='Write monitoring="port=9109", or Monitoring(port=9109).',
        )
    return None if monitoring == NONE else Monitoring.parse(monitoring)


def _checked_signals(names: object) -> tuple[str, ...]:
    given = _names("signals", names, example='("SIGTERM",), or () for none')
    for name in given:
        if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
            raise ConfigError(
                f"{shown(name)} is no signal that a process can answer.",
                hint="Name them as SIGTERM or SIGUSR1.",
            )
    return tuple(dict.fromkeys(given))


def _checked_trackers(names: object) -> tuple[str, ...]:
    given = _names("trackers", names, example='("wandb",), or () for none')
    for name in given:
        if name not in KNOWN:
            raise ConfigError(
                f"{shown(name)} is no tracker that is known.", hint=f"There are: {', '.join(KNOWN)}."
            )
    return tuple(name for name in KNOWN if name in given)


def _names(setting: str, names: object, *, example: str) -> Collection[str]:
    """Return names as they were given. One text is none of them: its letters would be taken for names."""
    wrong = names
    given = cast("Collection[object]", names) if isinstance(names, Collection) else ()
    if (
        isinstance(names, str)
        or not isinstance(names, Collection)
        or not all(isinstance(one, str) for one in given)
    ):
        raise ConfigError(
            f"{setting} must be a collection of names, not {shown(wrong)}.",
            hint=f"Write {setting}={example}.",
        )
    return cast("Collection[str]", given)


def _is_class(name: str) -> bool:
    """Whether a text can be the name of a class in a module.

    >>> _is_class("torch.Tensor"), _is_class(".."), _is_class("Tensor")
    (True, False, False)
    """
    parts = name.split(".")
    return len(parts) > 1 and all(part.isidentifier() for part in parts)


def _checked_classes(names: object) -> frozenset[str]:
    if isinstance(names, str) or not isinstance(names, Collection):
        raise ConfigError(
            f"trust is True, False, or a set of classes, not {shown(names)}.",
            hint='Write trust={"module.Class"}.',
        )
    given = cast("Collection[object]", names)
    for name in given:
        if not isinstance(name, str) or not _is_class(name):
            raise ConfigError(
                f"trust names a class as module.Class, not {shown(name)}.",
                hint="Leave it out to load no pickle.",
            )
    return frozenset(map(str, given))


def _one_of(name: str, value: object, words: tuple[str, ...], more: str = "") -> None:
    if value not in words:
        raise ConfigError(
            f"{name} is one of {', '.join(words)}{more}, not {shown(value)}.",
            hint="Leave it out for the default.",
        )
