"""Entry point of ``python -m moebench`` and of the ``moebench`` command."""

import os
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    from moebench.harness.cli.app import main as command_line

    sys.exit(command_line())


if __name__ == "__main__":
    # ``python -m`` puts the current folder first: a yaml.py there would replace the library.  A
    # system of one's own is found there all the same (`moebench.systems.registry.system_class`).
    if sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]
    main()
