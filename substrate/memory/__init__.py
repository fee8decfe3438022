"""Memory: tiers with byte budgets, the expert cache on the device, host memory before the disk."""
