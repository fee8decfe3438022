"""One run, from what was typed to its document."""
