"""Timed subnets as rows of a run: in this process or in a Ray actor on the device that the user names."""
