"""Scores of subnets with inherited weights: in this process, or by frozen replicas in Ray actors."""
