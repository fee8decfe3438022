"""Sections of the report, each as rows of text."""
