"""Output formats of figures and tables: CSV, LaTeX, SVG and trace events."""
