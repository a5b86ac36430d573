"""The `unbroken` command.

Exit codes, the same for every command: 0 yes or done; 1 the answer is no (a checkpoint is damaged, two
states differ); 2 it could not be done (wrong arguments, nothing there, a proof that could not be carried
out); 70 a bug in Unbroken; 130 interrupted; 141 the reader of our output went away.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (default: those of the process) and return its exit code."""
    # Imported late: who imports `unbroken.cli` for its name alone does not pay for typer and rich.
    from unbroken.cli.app import run

    return run(arguments)
