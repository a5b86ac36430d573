"""Feeds every decoder with bytes that nobody wrote. `python -m fuzz` (or `make fuzz`) runs it; see docs/trust.md."""
