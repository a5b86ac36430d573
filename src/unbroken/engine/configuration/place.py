"""Where the configuration file lies, and what stands in it as a tree with the line of each key.

`UNBROKEN_CONFIG` names it; else it is `unbroken.yaml` in the working directory, if there is one.

Invariant: a file is read as plain data: mappings, lists, texts, numbers. A key that stands twice, an alias and a tag
are errors, so that nothing a person reads in the file is other than what is taken from it.

Not promised: that it is looked for in directories above.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from unbroken.engine.configuration.variables import CONFIG
from unbroken.errors import SHOWN, ConfigError, installing, shown

if TYPE_CHECKING:
    import yaml

NAME = "unbroken.yaml"
MAX_BYTES = 1 << 16
"""What is longer takes the reader of YAML seconds."""
MAX_DEPTH = 8

Path = tuple[Hashable, ...]

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_TWO_MEANINGS = re.compile(r"[-+]?(0[0-9_]+|[0-9_]+(:[0-9_]+)+(\.[0-9_]*)?)")
"""010 is eight to YAML 1.1 and ten to people, 1:30 is ninety."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a file says. `lines` has the line of every key by its path."""

    name: str
    data: object
    lines: Mapping[Path, int]

    def at(self, path: Path) -> str:
        """Return where a key stands, as ``file:line``; for one that is not there, what it would be in."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.name}:{self.lines.get(path, 1)}"


def find(environment: Mapping[str, str], directory: str = "") -> str:
    """Return the path of the file as it was named; an empty text if there is none.

    Raises:
        ConfigError: the variable names a file that is not there.
    """
    named = environment.get(CONFIG, "")
    if named:
        if not os.path.exists(named):
            raise ConfigError(
                f"{CONFIG}={named!r}: there is no such file.", hint="Unset it, or write the file."
            )
        return named
    path = os.path.join(directory, NAME)
    return path if os.path.lexists(path) else ""


def read(path: str) -> Content:
    """Return what stands in a file.

    Raises:
        ConfigError: it cannot be read, or is no plain YAML.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ConfigError(
                f"{path} cannot be read: it is no regular file.", hint="Write the settings into a file."
            )
        # Without waiting, if it has become a pipe meanwhile.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}.", hint="It is a text in UTF-8.") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"{path} is too long for a configuration file, whose most are {MAX_BYTES:,} bytes.",
            hint="Look which file it is.",
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} cannot be read: {error}.", hint="It is a text in UTF-8.") from error
    return parse(text, path)


def parse(text: str, name: str) -> Content:
    """Return what a text says.

    Raises:
        ConfigError: it is no plain YAML.
    """
    try:
        import yaml
    except ImportError as error:
        raise ConfigError(f"{name} needs PyYAML to be read.", hint=installing("pyyaml")) from error
    try:
        depth = 0
        for event in cast("Any", yaml).parse(text, Loader=yaml.SafeLoader):
            line = event.start_mark.line + 1
            if isinstance(event, yaml.AliasEvent):
                raise ConfigError(
                    f"{name}:{line}: aliases have no place here.", hint="Write the value out a second time."
                )
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:  # before a tree is made of it
                raise ConfigError(
                    f"{name}:{line}: this is nested too deeply.", hint="See docs/configuration.md."
                )
        tree = cast("yaml.Node | None", cast("Any", yaml).compose(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", 0)
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise ConfigError(
            f"{name}:{line + 1}: this is no YAML: {problem}.", hint="See docs/configuration.md."
        ) from error
    if tree is None:
        return Content(name=name, data={}, lines={})
    reader = _Reader(name)
    return Content(name=name, data=reader.value(tree, ()), lines=reader.lines)


class _Reader:
    def __init__(self, name: str) -> None:
        import yaml

        self.lines: dict[Path, int] = {}
        self._name = name
        self._scalars: Any = yaml.SafeLoader("")

    def value(self, node: yaml.Node, path: Path) -> object:
        """Return a node as plain data, and note the lines of its keys."""
        import yaml

        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if isinstance(node, yaml.SequenceNode):
            parts = cast("list[yaml.Node]", node.value)
            return [self.value(part, (*path, number)) for number, part in enumerate(parts)]
        assert isinstance(node, yaml.MappingNode)
        return self._mapping(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        import yaml

        found: dict[str, object] = {}
        for key_node, value_node in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._wrong(key_node, "a key is a word", "See docs/configuration.md.")
            key = str(key_node.value)
            if key in found:
                first = self.lines[(*path, key)]
                raise self._wrong(
                    key_node,
                    f"{key[:SHOWN]} stands here for the second time, first on line {first}",
                    "Keep one.",
                )
            self.lines[(*path, key)] = key_node.start_mark.line + 1
            found[key] = self.value(value_node, (*path, key))
        return found

    def _scalar(self, node: yaml.ScalarNode) -> object:
        import yaml

        text = str(node.value)
        if node.tag in _NUMBERS and _TWO_MEANINGS.fullmatch(text):
            raise self._wrong(
                node,
                f"{shown(text)} is one number to one reader of YAML and another, or a text, to the next",
                "Write it out in decimal digits, or a text in quotes.",
            )
        try:
            return cast("object", self._scalars.construct_object(node))
        except (yaml.YAMLError, ValueError) as error:
            raise self._wrong(node, f"{shown(text)} cannot be read", "Put a text into quotes.") from error

    def _wrong(self, node: yaml.Node, what: str, hint: str) -> ConfigError:
        return ConfigError(f"{self._name}:{node.start_mark.line + 1}: {what}.", hint=hint)
