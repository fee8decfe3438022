"""Published measurements: rows that other people measured, and the simulator's predictions."""
