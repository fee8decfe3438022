"""Golden comparisons of two checkouts: whether their results and printed texts are equal."""
