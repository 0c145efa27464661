"""Loops around whole runs: the evolution of a search space."""
