"""Figures and the self-contained HTML page of a run."""
