"""The command line.  Nothing heavy is imported before a command needs it."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from moebench.harness.cli import (
    advise,
    evaluate,
    here,
    machines,
    models,
    reproduce,
    results,
    run,
    studies,
    sweep,
    timeline,
    trace,
    usage_errors,
)
from moebench.harness.cli.completion import CompletingGroup
from moebench.harness.cli.parameters import JSON
from moebench.harness.cli.usage_errors import check_typed, fitted, with_value

app = typer.Typer(
    cls=CompletingGroup,
    help="Compare systems that run Mixture-of-Experts models on a device too small to hold them.",
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
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say which.")
    ] = False,
) -> None:
    """Compare systems that run Mixture-of-Experts models on a device too small to hold them."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


class Listing(StrEnum):
    """What can be listed."""

    systems = "systems"
    settings = "settings"
    machines = "machines"
    software = "software"
    workloads = "workloads"
    policies = "policies"
    models = "models"
    options = "options"


def list_(
    what: Listing,
    long: Annotated[
        bool, typer.Option("--long", help="Systems: all that they are; options: in Markdown.")
    ] = False,
    json: JSON = False,
) -> None:
    """List systems, settings, machines, software, workloads, policies, models or run options."""
    from moebench.harness.cli.list import show

    show(what.value, json, long)


app.command()(run.run)
app.command()(sweep.sweep)
app.command("list")(list_)
app.command()(results.compare)
app.command()(results.report)
app.command()(results.show)
app.command()(results.rm)
app.command()(results.gc)
app.command()(studies.accuracy)
app.command()(studies.check)
app.command()(advise.advise)
app.command()(timeline.timeline)
app.command()(here.calibrate)
app.command()(here.validate)
app.command("eval")(evaluate.evaluate)
app.command()(reproduce.reproduce)
app.command()(here.doctor)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    0 done, 1 a check failed, 2 wrong usage or input (one line), 3 not measured, 130 interrupted.
    """
    from moebench.substrate.errors import IntegrityError, MoeBenchError

    try:
        check_typed(arguments)
        done: Any = app(args=arguments, prog_name="moebench", standalone_mode=False)
    except _USAGE_ERROR as error:
        said = error.format_message().rstrip(".")
        return _complain(f"{with_value(said, error, arguments)}; see: moebench --help")
    except (KeyboardInterrupt, typer.Abort):
        done = INTERRUPTED
    except IntegrityError:
        raise
    except MoeBenchError as error:
        return _complain(fitted(str(error), arguments))
    except OSError as error:  # a full disk, a file without permission, ...
        return _complain(str(error))
    if done == INTERRUPTED:  # Typer makes an exit code of the exception
        typer.echo("interrupted", err=True)
    return done if isinstance(done, int) else 0


def _complain(message: str) -> int:
    typer.echo(f"moebench: {' '.join(message.split())}", err=True)
    return 2
