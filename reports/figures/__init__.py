"""Vega-Lite specs of the report's charts, as plain dictionaries without data or URLs.

A spec names the fields of its rows.  Rows of comparisons come from `reports.page.views`; drawing
happens in the browser, with the rows that its filters leave.
"""
