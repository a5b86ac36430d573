"""Builds the site: `python -m docsite`, with `--write` after it has written the generated pages anew."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from docsite import generated


def main() -> int:
    """Return the exit status of mkdocs, which takes a warning for an error."""
    parser = argparse.ArgumentParser(
        prog="scripts/docs", description="Builds the documentation into build/site."
    )
    parser.add_argument(
        "--write", action="store_true", help="write the generated pages of docs/reference anew"
    )
    parser.add_argument("--serve", action="store_true", help="serve the site on this machine instead")
    options = parser.parse_args()
    if options.write:
        print("written:", ", ".join(generated.write()) or "nothing, all are up to date")
    # Not --quiet: what is not said is not counted either, and nothing would be strict.
    words = ["serve"] if options.serve else ["build", "--strict"]
    root = Path(__file__).parents[1]
    return subprocess.run([sys.executable, "-m", "mkdocs", *words], cwd=root, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
