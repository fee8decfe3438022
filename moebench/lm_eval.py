"""``python -m moebench.lm_eval``: lm-eval's command, with ``moebench`` as an additional model."""

import sys


def main() -> None:
    """Run lm-eval's command on this process's arguments; exit with 2 on a MoeBenchError."""
    from moebench.harness.evaluate.packages import require_lm_eval
    from moebench.substrate.errors import MoeBenchError

    try:
        require_lm_eval()
        from lm_eval.__main__ import cli_evaluate

        import moebench.harness.evaluate.lm_eval_model  # noqa: F401  (registers the class)

        cli_evaluate()
    except MoeBenchError as error:
        print(f"moebench: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
