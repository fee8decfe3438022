"""Replays of the simulated machine in compiled code, equal to the engine in Python."""
