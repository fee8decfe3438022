"""``moebench calibrate``, ``validate`` and ``doctor``: this computer, its profile, what is here."""

import os
from pathlib import Path
from typing import Annotated

import typer

from moebench.harness.cli.parameters import DATA_DIR, DEFAULT_STORE, JSON, STORE

WEIGHTS = Annotated[Path | None, typer.Option(help="Checkpoint to run.")]
MODEL = Annotated[str | None, typer.Option(help="Or a model, whose scale model it is.")]
LINK = Annotated[
    str | None, typer.Option(help="Experts in memory, behind a link; 4GB/s [on the disk].")
]


def calibrate(
    out: Annotated[Path, typer.Option(help="The profile's file; its name ends in .yaml.")],
    weights: WEIGHTS = None,
    model: MODEL = None,
    emulated_link: LINK = None,
    store: STORE = DEFAULT_STORE,
    json: JSON = False,
) -> None:
    """Measure this computer, part by part, and write a hardware profile of it."""
    from moebench.harness.arguments import parse_rate
    from moebench.harness.cli.fidelity import Place, calibrate_command

    rate = parse_rate("--emulated-link", emulated_link)
    calibrate_command(Place(weights, model, rate), out, store, json)


def validate(
    profile: Annotated[Path, typer.Option(help="From moebench calibrate.")],
    weights: WEIGHTS = None,
    model: MODEL = None,
    emulated_link: LINK = None,
    systems: Annotated[
        str | None, typer.Option(help="Separated by commas [seven of different kinds].")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="system.key=value, repeatable.")
    ] = None,
    cache_ratio: Annotated[float, typer.Option(help="Experts on the device, 0-1.")] = 0.25,
    workload: Annotated[str | None, typer.Option(help="See: moebench list workloads.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences decoded together.")] = 1,
    prompts: Annotated[int, typer.Option(min=1, help="How many prompts.")] = 4,
    new_tokens: Annotated[int, typer.Option(min=2, help="Generated per prompt.")] = 16,
    calibrate_texts: Annotated[
        int | None, typer.Option(help="How many texts learning systems are shown.")
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, help="Measured runs of each; the median counts.")
    ] = 3,
    data_dir: DATA_DIR = None,
    store: STORE = DEFAULT_STORE,
    out: Annotated[Path | None, typer.Option(help="Write the table as JSON.")] = None,
    json: JSON = False,
) -> None:
    """Run systems on this computer and on its profile, and show how far the two are apart."""
    from moebench.harness.arguments import parse_rate
    from moebench.harness.cli.fidelity import SYSTEMS, Place, validate_command

    given = {
        "cache_ratio": cache_ratio, "workload": workload, "batch": batch, "prompts": prompts,
        "new_tokens": new_tokens, "calibrate_texts": calibrate_texts,
    }  # fmt: skip
    rate = parse_rate("--emulated-link", emulated_link)
    validate_command(
        Place(weights, model, rate), profile, systems or SYSTEMS, set_ or [], repeats, given,
        data_dir, store, out, json,
    )  # fmt: skip


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
