"""The command line.  Nothing heavy is imported before a command needs it."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from moebench.harness.cli import evaluate, here, machines, models, reproduce, traces
from moebench.harness.cli.complaints import check_typed, with_value
from moebench.harness.cli.parameters import DATA_DIR, DEFAULT_STORE, JSON, STORE

app = typer.Typer(
    help="Compare systems that run Mixture-of-Experts models on a device too small to hold them.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(machines.app, name="machines")
app.add_typer(models.app, name="models")
app.add_typer(traces.app, name="trace")


#: What Typer raises for wrong usage.  Some releases carry their own copy of click, so the class is
#: found through a name that all of them export.
_USAGE_ERROR: Any = typer.BadParameter.__base__


INTERRUPTED = 130


@app.callback(invoke_without_command=True)
def _moebench(context: typer.Context) -> None:
    """Compare systems that run Mixture-of-Experts models on a device too small to hold them."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def run(
    system: Annotated[str, typer.Option(help="See: moebench list systems; or module:Class.")],
    variant: Annotated[
        str | None, typer.Option(help="published [default], or shipped: as its authors' code.")
    ] = None,
    setting: Annotated[str | None, typer.Option(help="See: moebench list settings.")] = None,
    workload: Annotated[str | None, typer.Option(help="See: moebench list workloads.")] = None,
    machine: Annotated[str | None, typer.Option(help="Profile, file.yaml, or local.")] = None,
    software: Annotated[str | None, typer.Option(help="See: moebench list software.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Whose bytes are charged: a name, or a config.json.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Checkpoint that does the maths.")] = None,
    routing: Annotated[
        str | None, typer.Option(help="Who chooses experts: model [default], drawn or real.")
    ] = None,
    trace: Annotated[str | None, typer.Option(help="Replay a trace instead of maths.")] = None,
    reconstruct_scores: Annotated[
        bool, typer.Option(help="Scores by rank, for a trace that holds none.")
    ] = False,
    precision: Annotated[str | None, typer.Option(help="bf16, fp16, fp32, 4bit or 2bit.")] = None,
    expert_dtype: Annotated[
        str | None, typer.Option(help="Quantise the routed experts: int8 or int4 [as they are].")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences decoded together [1].")] = None,
    alpha: Annotated[float | None, typer.Option(help="Substitution threshold α.")] = None,
    prompts: Annotated[int | None, typer.Option(help="How many prompts [32].")] = None,
    new_tokens: Annotated[int | None, typer.Option(help="Generated per prompt [64].")] = None,
    cache_ratio: Annotated[float | None, typer.Option(help="Experts on the device, 0-1.")] = None,
    slots: Annotated[int | None, typer.Option(help="The same, in number.")] = None,
    allow_overcommit: Annotated[bool, typer.Option(help="Pretend the device is larger.")] = False,
    device_memory: Annotated[
        str | None, typer.Option(help="Device memory for weights and KV cache: 12GB, GiB [all].")
    ] = None,
    free_host_gb: Annotated[
        float | None, typer.Option(help="Host memory for experts [all]; the rest is on disk.")
    ] = None,
    emulated_link: Annotated[
        str | None,
        typer.Option(help="With --machine local: experts in memory, behind a link; 4GB/s."),
    ] = None,
    page_cache: Annotated[
        str | None,
        typer.Option(help="With --machine local, of the disk: bypass [default] or keep."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="With --machine local: cpu [default] or cuda.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value, repeatable.")] = None,
    scoring: Annotated[
        str | None,
        typer.Option(help="fixed-length [default], generation, likelihood or prefill."),
    ] = None,
    few_shot: Annotated[
        str | None, typer.Option(help="Worked examples before a question; paper: as it did [0].")
    ] = None,
    plain_prompts: Annotated[
        bool, typer.Option("--plain-prompts", help="Without the checkpoint's chat template.")
    ] = False,
    calibrate_from: Annotated[
        str | None,
        typer.Option(help="Workload whose train split a learning system learns from [the run's]."),
    ] = None,
    calibrate_texts: Annotated[
        int | None, typer.Option(help="How many texts it is shown [its paper's number].")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Draws the prompts [0].")] = None,
    data_dir: DATA_DIR = None,
    store: STORE = DEFAULT_STORE,
    timeline: Annotated[Path | None, typer.Option(help="Write a trace for Perfetto.")] = None,
    force: Annotated[bool, typer.Option(help="Run again even if the result is stored.")] = False,
    no_interval: Annotated[
        bool, typer.Option("--no-interval", help="Do not work out how sure latencies are.")
    ] = False,
    json: JSON = False,
) -> None:
    """Run one system on one model and machine; store and show its figures."""
    from moebench.harness.cli.run import RunRequest, run_command
    from moebench.harness.options import parse_gib, parse_rate

    given = {
        "system": system,
        "variant": variant,
        "setting": setting,
        "workload": workload,
        "machine": machine,
        "software": software,
        "model": model,
        "weights": None if weights is None else str(weights),
        "routing": routing,
        "trace": trace,
        "reconstruct_scores": reconstruct_scores or None,
        "precision": precision,
        "expert_dtype": expert_dtype,
        "batch": batch,
        "alpha": alpha,
        "prompts": prompts,
        "new_tokens": new_tokens,
        "cache_ratio": cache_ratio,
        "slots": slots,
        "allow_overcommit": allow_overcommit or None,
        "device_memory_gib": parse_gib("--device-memory", device_memory),
        "free_host_gb": free_host_gb,
        "emulated_link_gb_s": parse_rate("--emulated-link", emulated_link),
        "page_cache": page_cache,
        "device": device,
        "seed": seed,
        "scoring": scoring,
        "few_shot": few_shot,
        "plain_prompts": plain_prompts or None,
        "calibrate_from": calibrate_from,
        "calibrate_texts": calibrate_texts,
    }
    request = RunRequest(given, set_ or [], data_dir, store, timeline, force, not no_interval, json)
    run_command(request)


@app.command()
def sweep(
    file: Annotated[
        Path | None, typer.Argument(help="Axes as YAML, or a sweep that ships: standard, ...")
    ] = None,
    systems: Annotated[str | None, typer.Option(help="Separated by commas, as all lists.")] = None,
    settings: Annotated[str | None, typer.Option(help="See: moebench list settings.")] = None,
    models: Annotated[str | None, typer.Option(help="Models whose bytes are charged.")] = None,
    machines: Annotated[str | None, typer.Option(help="Profiles, files.yaml, or local.")] = None,
    software: Annotated[str | None, typer.Option(help="See: moebench list software.")] = None,
    workloads: Annotated[str | None, typer.Option(help="See: moebench list workloads.")] = None,
    batches: Annotated[str | None, typer.Option(help="Sequences decoded together.")] = None,
    alphas: Annotated[str | None, typer.Option(help="Substitution thresholds α.")] = None,
    cache_ratios: Annotated[str | None, typer.Option(help="Experts on the device, 0-1.")] = None,
    prompts: Annotated[str | None, typer.Option(help="How many prompts.")] = None,
    new_tokens: Annotated[str | None, typer.Option(help="Generated per prompt.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Draw the prompts.")] = None,
    routings: Annotated[str | None, typer.Option(help="model, drawn, real.")] = None,
    traces: Annotated[str | None, typer.Option(help="Recordings that answer for models.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value in all cells.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=0, help="Processes [one a core]; 0 is this one.")
    ] = None,
    ray: Annotated[str | None, typer.Option(help="Address of a Ray cluster, or auto.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells and stop.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Run stored cells again.")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run cells again that failed.")
    ] = False,
    no_samples: Annotated[
        bool, typer.Option("--no-samples", help="Keep no time of every token.")
    ] = False,
    data_dir: DATA_DIR = None,
    store: STORE = DEFAULT_STORE,
    json: JSON = False,
) -> None:
    """Run every combination of systems, settings and lengths; finished cells are never run again.

    Exit code: 0 every cell is done, 1 some failed.
    """
    from moebench.harness.cli.sweep import SweepRequest, sweep_command

    axes = {
        "system": systems,
        "setting": settings,
        "model": models,
        "machine": machines,
        "software": software,
        "workload": workloads,
        "batch": batches,
        "alpha": alphas,
        "cache_ratio": cache_ratios,
        "prompts": prompts,
        "new_tokens": new_tokens,
        "seed": seeds,
        "routing": routings,
        "trace": traces,
    }
    request = SweepRequest(
        file, axes, set_ or [], jobs, ray, dry_run, force, retry_failed, not no_samples, data_dir,
        store, json,
    )  # fmt: skip
    raise typer.Exit(sweep_command(request))


class Listing(StrEnum):
    """What can be listed."""

    systems = "systems"
    settings = "settings"
    machines = "machines"
    software = "software"
    workloads = "workloads"
    policies = "policies"
    models = "models"


@app.command("list")
def list_(
    what: Listing,
    long: Annotated[
        bool, typer.Option("--long", help="Systems: all that they are, in Markdown.")
    ] = False,
    json: JSON = False,
) -> None:
    """List systems, settings, machines, software, workloads, policies or models."""
    from moebench.harness.cli.listings import show

    show(what.value, json, long)


@app.command()
def compare(
    systems: Annotated[str | None, typer.Option(help="Separated by commas [all].")] = None,
    settings: Annotated[str | None, typer.Option(help="See: moebench list settings.")] = None,
    workloads: Annotated[str | None, typer.Option(help="Averaged over [all].")] = None,
    batches: Annotated[str | None, typer.Option(help="A table for each [all].")] = None,
    mixed: Annotated[
        str | None, typer.Option(help="What may differ, and is marked: software, prompts, ...")
    ] = None,
    store: STORE = DEFAULT_STORE,
    markdown: Annotated[bool, typer.Option("--markdown", help="For a document.")] = False,
    json: JSON = False,
) -> None:
    """Systems beside each other, under equal conditions: bytes, precision, prompts, software."""
    from moebench.harness.cli.compare import compare_command

    wanted = {"system": systems, "setting": settings, "workload": workloads, "batch": batches}
    form = "json" if json else "markdown" if markdown else "text"
    compare_command(store, wanted, mixed, form)


@app.command()
def report(
    html: Annotated[Path | None, typer.Option(help="Write one offline page.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Folder for the tables as CSV.")] = None,
    latex: Annotated[Path | None, typer.Option(help="Folder for the tables as LaTeX.")] = None,
    store: STORE = DEFAULT_STORE,
    json: JSON = False,
) -> None:
    """Show the stored runs and the accuracy tables, or write them as an HTML page."""
    from moebench.harness.cli.report import report_command

    report_command(html, store, json, csv, latex)


@app.command()
def accuracy(
    settings: Annotated[str, typer.Option(help="Separated by commas.")] = "S1,S2,S3",
    workloads: Annotated[
        str | None,
        typer.Option(help="Separated by commas [the generated families and SMoE's five sets]."),
    ] = None,
    alphas: Annotated[str | None, typer.Option(help="Separated by commas [SMoE's 13].")] = None,
    system: Annotated[str, typer.Option(help="A system whose routing has an α.")] = "smoe",
    prompts: Annotated[int, typer.Option(min=1, help="Questions in each cell.")] = 50,
    seed: Annotated[int, typer.Option(min=0, help="Draws the questions.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = os.cpu_count() or 1,
    out: Annotated[Path, typer.Option(help="The table's file; its other cells stay.")] = Path(
        "alpha.csv"
    ),
    data_dir: DATA_DIR = None,
    store: STORE = DEFAULT_STORE,
) -> None:
    """Compute the α table (SMoE, Table IV): what substitution costs, workload by workload.

    Cells that are stored already are not computed again.
    """
    from moebench.harness.studies.alpha_table import TableRequest, accuracy_command

    accuracy_command(
        TableRequest(settings, workloads, alphas, system, prompts, seed, data_dir, store, out, jobs)
    )


@app.command()
def check(
    update: Annotated[bool, typer.Option(help="Accept what is measured now.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = os.cpu_count() or 1,
    json: JSON = False,
) -> None:
    """Recompute a fixed part of the accuracy tables and compare it, question by question.

    Exit code: 0 pass or improved, 1 regressed, 3 not measured.
    """
    from moebench.harness.studies.check import check_command

    raise typer.Exit(check_command(update, jobs, json))


app.command()(here.calibrate)
app.command()(here.validate)
app.command("eval")(evaluate.evaluate)
app.command()(reproduce.reproduce)


@app.command()
def doctor(
    system: Annotated[
        str | None, typer.Option(help="Check this system instead, module:Class or all.")
    ] = None,
    variant: Annotated[
        str | None, typer.Option(help="Of the system: published or shipped [both].")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = os.cpu_count() or 1,
    data_dir: DATA_DIR = None,
    store: STORE = DEFAULT_STORE,
    json: JSON = False,
) -> None:
    """Check this installation: packages, models, data, store; or what a system must keep to.

    Exit code: 0 nothing is broken, 1 something is.
    """
    if system is not None:
        from moebench.harness.cli.conformance import conformance_command

        raise typer.Exit(conformance_command(system, variant, jobs, json))
    if variant is not None:
        raise typer.BadParameter("--variant is a system's: give --system NAME")
    from moebench.harness.cli.doctor import examine

    raise typer.Exit(examine(data_dir, store, json))


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
        return _complain(str(error))
    except OSError as error:  # a full disk, a file without permission, ...
        return _complain(str(error))
    if done == INTERRUPTED:  # Typer makes an exit code of the exception
        typer.echo("interrupted", err=True)
    return done if isinstance(done, int) else 0


def _complain(message: str) -> int:
    typer.echo(f"moebench: {' '.join(message.split())}", err=True)
    return 2
