"""Measurements of raynas itself on the machine at hand."""

PARTS = ("step", "sandwich", "channels_last", "precision", "pool", "archs")
"""Names of the parts of `raynas bench all`, in the order of its table; here, where a command reads it without torch."""
