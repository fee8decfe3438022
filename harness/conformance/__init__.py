"""What every system must keep to, checked on any of them: `moebench doctor --system NAME`."""
