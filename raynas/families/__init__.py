"""Supernet families: one folder each, with the same files: space, cost, model, checkpoint."""
