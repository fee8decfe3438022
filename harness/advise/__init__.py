"""Advice: which system and which α meet a budget."""
