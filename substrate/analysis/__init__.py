"""Figures of routing and of runs: statistics, cache hits, lower bounds."""
