"""Proof by killing: run a script undisturbed, run it again with SIGKILLs, compare the two ends."""
