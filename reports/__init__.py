"""Tables, charts and the HTML page, made from stored documents alone, without torch."""
