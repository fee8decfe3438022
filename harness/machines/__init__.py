"""Hardware profiles of this computer: drafted from a survey, calibrated and validated."""
