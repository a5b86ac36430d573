"""Where the configuration file lies, and what stands in it as a tree with the line of each key.

`UNBROKEN_CONFIG` names it; else it is `unbroken.yaml` in the working directory, if there is one.

Invariant: a file is read as plain data: mappings, lists, texts, numbers. A key that stands twice, an alias and a tag
are errors, so that nothing a person reads in the file is other than what is taken from it.

Not promised: that it is looked for in directories above.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from unbroken.engine.configuration.variables import CONFIG
from unbroken.errors import ConfigError

if TYPE_CHECKING:
    import yaml

NAME = "unbroken.yaml"
MAX_BYTES = 1 << 20
MAX_DEPTH = 8

Path = tuple[Hashable, ...]


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
    return path if os.path.isfile(path) else ""


def read(path: str) -> Content:
    """Return what stands in a file.

    Raises:
        ConfigError: it cannot be read, or is no plain YAML.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MAX_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.", hint="It is a text in UTF-8.") from error
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{path} is too long for a configuration file.", hint="Look which file it is.")
    return parse(text, path)


def parse(text: str, name: str) -> Content:
    """Return what a text says.

    Raises:
        ConfigError: it is no plain YAML.
    """
    try:
        import yaml
    except ImportError as error:
        raise ConfigError(f"{name} needs PyYAML to be read.", hint="pip install pyyaml") from error
    try:
        for event in cast("Any", yaml).parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                line = event.start_mark.line + 1
                raise ConfigError(
                    f"{name}:{line}: aliases have no place here.", hint="Write the value out a second time."
                )
        tree = cast("yaml.Node | None", cast("Any", yaml).compose(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", 0)
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise ConfigError(
            f"{name}:{line + 1}: this is no YAML: {problem}.", hint="See docs/configuration.md."
        ) from error
    except RecursionError:
        raise ConfigError(f"{name} is nested too deeply.", hint="See docs/configuration.md.") from None
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

        if len(path) > MAX_DEPTH:
            raise self._wrong(node, "this is nested too deeply", "See docs/configuration.md.")
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
                    key_node, f"{key} stands here for the second time, first on line {first}", "Keep one."
                )
            self.lines[(*path, key)] = key_node.start_mark.line + 1
            found[key] = self.value(value_node, (*path, key))
        return found

    def _scalar(self, node: yaml.ScalarNode) -> object:
        import yaml

        try:
            return cast("object", self._scalars.construct_object(node))
        except (yaml.YAMLError, ValueError) as error:
            raise self._wrong(node, f"{node.value!r} cannot be read", "Put a text into quotes.") from error

    def _wrong(self, node: yaml.Node, what: str, hint: str) -> ConfigError:
        return ConfigError(f"{self._name}:{node.start_mark.line + 1}: {what}.", hint=hint)
