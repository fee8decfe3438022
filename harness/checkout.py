"""Where the checkout is that moebench runs from, if it runs from one."""

from pathlib import Path


def checkout() -> Path | None:
    """Return the root of moebench's checkout, or None if it runs from an installed package.

    The packages of a checkout lie below ``moebench/`` as links, which are resolved here.
    """
    root = Path(__file__).resolve().parents[1]
    return root if (root / "pyproject.toml").is_file() else None
