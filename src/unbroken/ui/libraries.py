"""What all pages are made with: one template engine, plotly.js, and the files of `ui/static`. The first two are optional
libraries, loaded when first used.

Invariant: where one is missing there is one clear error, with what to install. Every text that goes into a page is
escaped by this engine, and nowhere else. Stable: `templates`, `plotly_js`, `own_file` and `STATIC`.

Not promised: that texts of runs are fit for a browser's script. None is put into one but as JSON by `charts.chart.embedded`.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from unbroken.errors import ConfigError, installing
from unbroken.report.position import where
from unbroken.ui.filters import FILTERS

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER = "unbroken.ui"
STATIC = resources.files(FOLDER).joinpath("static")


@cache
def templates() -> Environment:
    """Return the template engine of all pages, over `ui/templates`. What a template misspells is an error, not an empty
    place.

    Raises:
        ConfigError: jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise _missing("Jinja2") from error
    engine = Environment(
        loader=PackageLoader(FOLDER, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Typed by jinja2 as what it has itself.
    filters: dict[str, Any] = engine.filters
    filters.update(FILTERS)
    names: dict[str, Any] = engine.globals
    names["where"] = where
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
        raise _missing("Plotly") from error
    return str(get_plotlyjs())


@cache
def own_file(name: str) -> str:
    """Return a file of `ui/static`, as text."""
    return STATIC.joinpath(name).read_text("utf-8")


def _missing(library: str) -> ConfigError:
    return ConfigError(
        f"A page needs {library}, which is not installed.", hint=installing("plotly", "jinja2")
    )
