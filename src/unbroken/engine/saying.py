"""Lines for the person who looks at standard error, if there is one.

Not promised: that anybody reads them. A training goes on without: its terminal may be closed, its log's disk full, its
reader gone, or there is no such stream.
"""

from __future__ import annotations

import sys
from contextlib import suppress


def say(*lines: str) -> None:
    """Write lines to standard error; nothing is raised where that takes none."""
    stream = sys.stderr
    # `ValueError`: it is closed, or has no such letters.
    with suppress(OSError, ValueError, AttributeError):
        text = "".join(f"{line}\n" for line in lines)
        try:
            stream.write(text)
        except UnicodeEncodeError:
            stream.write(text.encode("ascii", "backslashreplace").decode())
        stream.flush()
