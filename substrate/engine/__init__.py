"""The engine: a system's five decisions, the loop that calls them, and expert transfers."""
