"""Phases of a run: train, search, retrain, evaluate, rank, export, import, report."""
