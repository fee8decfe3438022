"""Run results: options, figures, the store of runs, and the committed reference tables."""
