"""Runs of third-party packages (native systems): process, memory limit and run document."""
