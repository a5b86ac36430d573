"""What becomes of a training that is resumed without a part of its state: measured, for docs/state.md."""
