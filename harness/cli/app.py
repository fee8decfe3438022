"""The Typer application; commands import heavy modules only in their bodies."""

from typing import Annotated, Any

import typer

from moebench.harness.cli import (
    accuracy,
    advise,
    calibrate,
    compare,
    doctor,
    evaluate,
    machines,
    models,
    report,
    reproduce,
    run,
    search,
    stored,
    sweep,
    timeline,
    trace,
    usage_errors,
)
from moebench.harness.cli import list as listing
from moebench.harness.cli.completion import CompletingGroup
from moebench.harness.cli.usage_errors import adapt_options, check_typed, with_value
from moebench.substrate.text import visible

app = typer.Typer(
    cls=CompletingGroup,
    help="Compare systems that run Mixture-of-Experts models that do not fit into device memory.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(machines.app, name="machines")
app.add_typer(models.app, name="models")
app.add_typer(trace.app, name="trace")


usage_errors.program = app

#: What Typer raises for wrong usage.  Some releases carry their own copy of click, so the class is
#: found through a name that all of them export.
_USAGE_ERROR: Any = typer.BadParameter.__base__


INTERRUPTED = 130


def _say_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"moebench {version('moebench')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _moebench(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Compare systems that run Mixture-of-Experts models that do not fit into device memory."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for command in (
    run.run, sweep.sweep, listing.list_, compare.compare, report.report, stored.show, stored.rm,
    stored.gc, accuracy.accuracy, accuracy.check, advise.advise, timeline.timeline,
    calibrate.calibrate, calibrate.validate, evaluate.evaluate, reproduce.reproduce, doctor.doctor,
    search.search,
):  # fmt: skip
    app.command({"list_": "list", "evaluate": "eval"}.get(command.__name__))(command)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0 done, 1 a check failed, 2 wrong usage or input (one line), 3 not measured, 130 interrupted.
    """
    from moebench.harness.extras import install_errors
    from moebench.substrate.errors import IntegrityError, MoeBenchError

    try:
        check_typed(arguments)
        with install_errors():
            done: Any = app(args=arguments, prog_name="moebench", standalone_mode=False)
    except _USAGE_ERROR as error:
        said = error.format_message().rstrip(".")
        return _refuse(f"{with_value(said, error, arguments)}; see: moebench --help")
    except (KeyboardInterrupt, typer.Abort):
        done = INTERRUPTED
    except IntegrityError:
        raise
    except MoeBenchError as error:
        return _refuse(adapt_options(str(error), arguments))
    except OSError as error:  # a full disk, a file without permission, ...
        return _refuse(str(error))
    if done == INTERRUPTED:  # Typer makes an exit code of the exception
        typer.echo("interrupted", err=True)
    return done if isinstance(done, int) else 0


def _refuse(message: str) -> int:
    typer.echo(f"moebench: {visible(' '.join(message.split()))}", err=True)
    return 2
