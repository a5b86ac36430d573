"""RLlib, new API stack: one callback that saves an Algorithm with all its processes, and brings it back."""
