"""Exports for other programs: writing one, reading it, acting with it, and taking it over into SB3."""
