"""Scale models: training, import, verification."""
