"""Latency of subnets: timed on a device, kept as rows, and predicted."""
