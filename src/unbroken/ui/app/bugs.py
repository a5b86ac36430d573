"""Bugs of ours that come to light behind a page: told in a sentence there, and with their traceback where the server runs.

Invariant: no bug is told without its traceback being written to the log `unbroken.ui`, which goes to standard error where
nobody has set up logging.
"""

from __future__ import annotations

import logging

from unbroken.errors import InternalError, UnbrokenError

LOG = logging.getLogger("unbroken.ui")
HINT = "Please report it with the traceback, which the server has written to its standard error."


def as_told(error: Exception, where: str) -> UnbrokenError:
    """Return an error as a page tells it. One that is none of ours, or says itself that it is a bug, is logged: `where` says
    in a sentence what could not be done."""
    if isinstance(error, UnbrokenError) and not isinstance(error, InternalError):
        return error
    LOG.error("%s", where, exc_info=error)
    if isinstance(error, InternalError):
        return InternalError(error.message, hint=HINT)
    return InternalError(f"A bug in Unbroken: {type(error).__name__}: {error}.", hint=HINT)
