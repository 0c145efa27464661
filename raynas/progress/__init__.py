"""Progress of everything that takes time."""
