"""Networks and tables that systems learn before they run."""
