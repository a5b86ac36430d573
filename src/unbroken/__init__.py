"""Exact, incremental checkpoints for reinforcement learning."""
