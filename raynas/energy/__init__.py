"""Energy that machines count themselves: read from their counters, and added up."""
