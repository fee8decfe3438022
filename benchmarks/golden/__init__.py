"""Golden comparisons: whether a checkout prints and computes exactly what another one does."""
