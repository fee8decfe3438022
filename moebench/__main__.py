"""Entry point of ``python -m moebench`` and of the ``moebench`` command."""

import sys

from moebench.harness.cli.app import main as _main


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(_main())


if __name__ == "__main__":
    main()
