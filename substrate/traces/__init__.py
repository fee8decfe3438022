"""Routing traces: recording, import, synthesis, and replay."""
