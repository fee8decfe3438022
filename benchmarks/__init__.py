"""Timings, as ratios measured in one run; never part of the tests."""
