"""The least that a family can be: a linear layer of elastic width over all pixels, and a classifier."""
