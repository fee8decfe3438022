"""Scale models (the full-size models' topology, small widths): training, import, verification."""
