"""Datasets: named by one string, split once, read by every worker from their own place.

The workers of a cluster are sent the `DataConfig`; each reads the images itself by name, path or URI.
"""
