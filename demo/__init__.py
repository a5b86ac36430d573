"""The demo: `make demo`, `python -m demo` or `unbroken demo` in a source checkout."""
