"""Fixed experiments over many runs: the α table, the accuracy check, eviction figures."""
