"""The command line and what it executes: runs, sweeps, guards, advice, scale models."""
