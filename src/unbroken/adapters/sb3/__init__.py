"""Stable-Baselines3: everything that makes one of its trainings resumable without patching it."""
