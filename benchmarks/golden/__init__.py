"""Golden comparisons: does a checkout say and compute exactly what another one does?"""
