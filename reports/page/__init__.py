"""The HTML page: its data as plain values, which the page's own scripts display."""
