"""The command line and what it carries out: runs, sweeps, studies, scale models."""
