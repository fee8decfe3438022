"""The data of the HTML page: plain values, each once, that its own scripts show."""
