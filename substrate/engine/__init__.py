"""The five decisions, the loop that asks them, and expert transfers."""
