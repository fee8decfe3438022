"""Hardware profiles of this computer: surveyed, calibrated and validated."""
