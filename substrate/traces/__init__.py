"""Routing traces: recorded, imported, drawn, and replayed."""
