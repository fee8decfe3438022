"""``moebench calibrate``, ``validate`` and ``doctor``: this computer, its profile, what is here."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moebench.harness.cli.options import Changed, takes
from moebench.harness.cli.parameters import DATA_DIR, DEFAULT_STORE, JSON, STORE

if TYPE_CHECKING:
    from moebench.harness.cli.fidelity import Place

#: What is measured, and what lies below the device.
MEASURED = ("weights", "model", "emulated_link_gb_s")
CHANGED = {
    "weights": Changed("Checkpoint to run."),
    "model": Changed("Or a model, whose scale model it is."),
    "emulated_link_gb_s": Changed("Experts in memory, behind a link; 4GB/s [on the disk]."),
}


def _place(given: dict[str, Any]) -> "Place":
    """What is measured, taken out of what was given."""
    from moebench.harness.cli.fidelity import Place

    weights, model, link = (given.pop(name, None) for name in MEASURED)
    return Place(None if weights is None else Path(weights), model, link)


@takes(*MEASURED, **CHANGED)
def calibrate(
    out: Annotated[Path, typer.Option(help="The profile's file; its name ends in .yaml.")],
    given: dict[str, Any],
    store: STORE = DEFAULT_STORE,
    json: JSON = False,
) -> None:
    """Measure this computer, part by part, and write a hardware profile of it."""
    from moebench.harness.cli.fidelity import calibrate_command

    calibrate_command(_place(given), out, store, json)


@takes(
    *MEASURED, "cache_ratio", "workload", "batch", "prompts", "new_tokens", "calibrate_texts",
    **CHANGED, cache_ratio=Changed(default=0.25), batch=Changed(default=1, min=1),
    prompts=Changed(default=4, min=1), new_tokens=Changed(default=16, min=2),
)  # fmt: skip
def validate(
    profile: Annotated[Path, typer.Option(help="From moebench calibrate.")],
    given: dict[str, Any],
    systems: Annotated[
        str | None, typer.Option(help="Separated by commas [seven of different kinds].")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="system.key=value, repeatable.")
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
    from moebench.harness.cli.fidelity import SYSTEMS, validate_command

    place = _place(given)
    validate_command(
        place, profile, systems or SYSTEMS, set_ or [], repeats, given, data_dir, store, out, json
    )


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
