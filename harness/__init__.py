"""The command line and what it carries out: runs, sweeps, guards, advice, scale models."""
