"""How docstrings become text of the site: examples in them are shown as code.

Invariant: what `help()` shows is not changed.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_EXAMPLE = re.compile(r"(?:^|\n)((?:>>> [^\n]*)(?:\n(?!\n)[^\n]+)*)")


class DocstringsExtension(Extension):
    """Puts examples into blocks."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Called for each module, class, function and attribute that is read."""
        del kwargs
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    r"""Return a docstring with its examples in blocks of code.

    >>> fenced("a\n\n>>> 1 + 1\n2\n\nb")
    'a\n\n```pycon\n>>> 1 + 1\n2\n```\n\nb'
    """
    return _EXAMPLE.sub(lambda found: f"\n```pycon\n{found[1]}\n```", text)
