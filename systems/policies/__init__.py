"""Policies and predictors that several systems share, in one module for each kind of decision."""
