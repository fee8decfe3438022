"""The systems that moebench compares, one file for each paper or group of baselines."""
