"""Reproduction of the papers: their claims, tables and figures, measured again."""
