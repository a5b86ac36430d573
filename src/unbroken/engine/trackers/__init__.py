"""Checkpoints and restarts as marks in the trackers that a training logs to."""
