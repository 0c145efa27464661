"""Training-free scores of archs (zero-cost proxies), from networks at random initialisation."""
