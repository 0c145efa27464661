"""Datasets: named by one string, split once, read by every worker from where they lie.

What travels to the workers of a cluster is the `DataConfig`; each worker reads the images itself by name, path or
URI.
"""
