"""Thousands of faults, each followed by a recovery that is verified: `python -m torture`, or `make torture`."""
