"""Twins-SVT: stages of blocks with local window attention or global sub-sampled attention."""
