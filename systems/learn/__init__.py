"""Networks and tables that systems fit to recorded routing before a run."""
