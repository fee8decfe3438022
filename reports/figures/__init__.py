"""Vega-Lite specs of the report's figures, as plain dictionaries without data and without any URL.

A spec names the fields of its rows.  Rows of comparisons come from `reports.page.views`; drawing
happens in the browser, with the rows that its filters leave.
"""
