"""Ablations: rows of a table, each a preset with some changes, carried out with several seeds and compared."""
