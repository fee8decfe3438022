"""Decisions that several systems share, one module for each kind."""
