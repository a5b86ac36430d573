"""What pages need beside this package: a template engine and plotly.js. Both are optional, and loaded when first used.

Invariant: where one is missing there is one clear error, with the extra that brings it. Stable: `templates`, `plotly_js`
and `own_file`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from unbroken.errors import ConfigError
from unbroken.report import quantity

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER = "unbroken.ui"
FILTERS: dict[str, Callable[..., str]] = {
    "size": quantity.size,
    "seconds": quantity.seconds,
    "moment": quantity.moment,
    "number": quantity.number,
}
"""What templates may write behind a bar."""


@cache
def templates() -> Environment:
    """Return the template engine over `ui/templates`. It escapes whatever it is given, and an unknown name is an error.

    Raises:
        ConfigError: jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise _missing("Jinja2", "report") from error
    engine = Environment(
        loader=PackageLoader(FOLDER, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    engine.filters.update(FILTERS)
    return engine


@cache
def plotly_js() -> str:
    """Return plotly.js, as text.

    Raises:
        ConfigError: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise _missing("Plotly", "report") from error
    return str(get_plotlyjs())


@cache
def own_file(name: str) -> str:
    """Return a file of `ui/static`, as text."""
    return resources.files(FOLDER).joinpath("static").joinpath(name).read_text("utf-8")


def _missing(library: str, extra: str) -> ConfigError:
    return ConfigError(
        f"A page needs {library}, which is not installed.",
        hint=f"Install it with: pip install 'unbroken[{extra}]'",
    )
