"""Comparisons: which runs may be compared, sorted into tables, with means and ratios."""
