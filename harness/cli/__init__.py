"""The commands of `moebench`, a file for each group."""
