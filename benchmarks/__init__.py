"""Benchmarks of moebench itself, as ratios measured in one run; not run by the tests."""
