"""What OpenCompass's own process imports, from this folder: it has no `moebench` to import."""
