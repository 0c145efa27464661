"""Energy use, read from the machines' own counters and summed."""
