"""The engine: a system's six decisions, the loop that calls them, and expert transfers."""
