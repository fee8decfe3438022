"""Advice on which system and which α meet a budget (`moebench advise`)."""
