"""This computer's free memory."""


def available_bytes() -> int | None:
    """Return the bytes of memory available without swapping; None if not known."""
    try:
        with open("/proc/meminfo") as lines:
            (line,) = (line for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError):
        return None
    return int(line.split()[1]) * 1024
