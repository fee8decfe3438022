"""Tiers with byte budgets, and the expert cache on the device."""
