"""The systems that moebench compares: a file for each paper or group of baselines."""
