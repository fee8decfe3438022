"""Runs of third-party packages: their process, memory limit and document."""
