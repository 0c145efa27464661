"""Tuning: a study of Optuna proposes the trials of an experiment."""
