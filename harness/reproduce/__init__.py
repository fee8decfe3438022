"""The papers' claims, tables and figures, measured again."""
