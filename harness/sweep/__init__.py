"""Sweeps of many runs: planned as cells, run by worker processes, resumed when interrupted."""
