"""The commands of `moebench`, one file for each command or group."""
