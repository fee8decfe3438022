"""Stored runs over the commits of a user's repository."""
