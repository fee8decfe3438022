"""The store of runs, and the reference tables that are committed."""
