"""Words that settings have in common with the file and the variables."""

from __future__ import annotations

PREFIX = "UNBROKEN_"
"""How the name of every variable begins."""
NONE = "none"
"""The word that switches off what a file or a script has set."""
RESUME_WORDS = ("auto", "must", "never", "best")
CODE = "code"
"""The origin of a value that a script has given."""
DEFAULT = "default"
"""The origin of a value that nobody has given."""
