"""Analysis of routing and runs: statistics, cache hit rates, lower bounds of time."""
