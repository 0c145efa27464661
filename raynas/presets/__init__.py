"""Presets: everything that a run needs to know, as validated YAML."""
