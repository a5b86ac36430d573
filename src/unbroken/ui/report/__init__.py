"""The report of a run: one HTML file that asks nobody for anything."""
