"""Advice on which system and which α meet a budget of time or accuracy."""
