"""Entry point of ``python -m moebench`` and of the ``moebench`` command."""

import os
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    if getattr(sys.modules["moebench"], "__file__", None) is None:
        # A folder without __init__.py: the wheel of the weights alone, before an editable install.
        sys.exit(_hidden())
    from moebench.harness.cli.app import main as command_line

    sys.exit(command_line())


def _hidden() -> int:
    print(
        "moebench: the installed moebench-weights hide this checkout, which has its own; type: "
        "pip uninstall moebench-weights",
        file=sys.stderr,
    )
    return 2


if __name__ == "__main__":
    # ``python -m`` puts the current folder first: a yaml.py there would replace the library.  A
    # system of one's own is found there all the same (`moebench.systems.registry.system_class`).
    if sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]
    main()
