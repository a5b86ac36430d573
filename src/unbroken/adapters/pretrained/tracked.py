"""`Pretrained`: what a model's `save_pretrained` writes, as a part of a run's state."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from unbroken.adapters.pretrained.layout import Layout, read, safetensors
from unbroken.capture.policies import describe
from unbroken.errors import ConfigError

if TYPE_CHECKING:
    import torch


@runtime_checkable
class SavesPretrained(Protocol):
    """A model, tokenizer or configuration that writes itself into a directory."""

    def save_pretrained(self, save_directory: str) -> object:
        """Write everything that is needed to build it again."""
        ...


class Pretrained:
    """A model and what belongs to it, saved as `save_pretrained` lays it out.

    >>> from unbroken.pretrained import Pretrained
    >>> run.track(policy=Pretrained(model, tokenizer))  # doctest: +SKIP

    Weights come back in place, into the model among the parts; JSON and text files are kept as they are,
    and `unbroken export RUN --to hf-dir DIR` gives the directory again. `scratch` is where parts write
    while they are captured: as much room as the model takes; by default the system's temporary directory.

    Not promised: what `save_pretrained` leaves out. A buffer that is left out is named, and the
    component is then not exact; generators, modes and optimizers are tracked beside it. A start is refused
    where it writes other tensors than the model has, or leaves out a parameter.

    Raises:
        ConfigError: a part cannot write itself, several hold weights, or safetensors is not installed.
    """

    def __init__(self, *parts: SavesPretrained, scratch: str | Path | None = None) -> None:
        import torch  # a model's weights are its tensors

        if not parts:
            raise ConfigError("There is nothing to save.", hint="Give the model, and its tokenizer.")
        given: tuple[object, ...] = parts
        for part in given:
            if not isinstance(part, SavesPretrained) or isinstance(part, type):
                raise ConfigError(
                    f"{type(part).__qualname__} has no save_pretrained.", hint="Track it by itself."
                )
        modules = [part for part in given if isinstance(part, torch.nn.Module)]
        if len(modules) > 1:
            raise ConfigError(
                "Two models would write the same files.", hint="Give each a Pretrained of its own."
            )
        safetensors()
        self._parts = parts
        self._module: torch.nn.Module | None = modules[0] if modules else None
        self._scratch = scratch
        self._values_checked = False
        self.files: dict[str, bytes] = {}
        """The files that are no weights, as the parts wrote them last."""

    @property
    def module(self) -> torch.nn.Module | None:
        """The part that holds the weights."""
        return self._module

    def written(self) -> Layout:
        """Have the parts write themselves, and return what they wrote.

        Raises:
            ConfigError: it could not be restored, or not written again: see `fit.check` and `layout.read`.
        """
        from unbroken.adapters.pretrained import fit  # torch

        with tempfile.TemporaryDirectory(prefix="unbroken-pretrained-", dir=self._scratch) as directory:
            for part in self._parts:
                part.save_pretrained(directory)
            layout = read(Path(directory))
        # Values once, at the start: later ones would cost every save a look at the whole model.
        fit.check(layout, self._module, values=not self._values_checked)
        self._values_checked = True
        self.files = dict(layout.files)
        return layout


describe(__name__, f"{__name__.rpartition('.')[0]}.codec")
