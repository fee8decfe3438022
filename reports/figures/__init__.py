"""Vega-Lite specs of the report's figures, as plain dictionaries without data and without any URL.

A spec names the fields of its rows; rows are what `reports.page.views` makes of a comparison, or what
the module of the figure says.  Drawing happens in the browser, with the rows that its filters leave.
"""
