"""Modules for OpenCompass's process, which imports them from this folder, without `moebench`."""
