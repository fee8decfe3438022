"""``moebench calibrate`` and ``validate``: a profile of this computer; errors of the simulation."""

import json as json_text
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from moebench.harness import console
from moebench.harness.cli.options import Changed, takes
from moebench.harness.cli.parameters import DATA_DIR, DEFAULT_STORE, JSON, STORE, argument, option
from moebench.results.spec import OPTIONS
from moebench.substrate.errors import InputError, UsageError

#: The systems that `moebench validate` runs by default.
SYSTEMS = "moe-ondemand,smoe,daop,duoserve,flashmoe,hybrimoe,llamacpp"

#: Options of `moebench validate --published`, and of `--add-row`; all others run systems.
PUBLISHED = ("published", "rows", "left_out", "check", "html", "out", "json")
ADD_ROW = ("add_row",)

#: What is measured, and what lies below the device.
MEASURED = ("weights", "model", "emulated_link_gb_s")
CHANGED = {
    "weights": Changed("Folder of the checkpoint to run."),
    "model": Changed("Model whose scale model is run, instead of --weights."),
    "emulated_link_gb_s": Changed(
        "Keep experts in host memory behind an emulated link, such as 4GB/s [on disk]."
    ),
}


@takes(*MEASURED, "device", "precision", **CHANGED)
def calibrate(
    out: Annotated[Path, option("File to write the profile to; its name ends in .yaml.")],
    given: dict[str, Any],
    quick: Annotated[
        bool, option("Measure in two minutes, without a checkpoint.", "--quick")
    ] = False,
    store: STORE = DEFAULT_STORE, json: JSON = False,
) -> None:  # fmt: skip
    """Measure each component of this computer, or of its GPU, and write its hardware profile.

    With --quick: reads and products of the host, the hand-off, the GPU's link, and the disk.
    """
    if quick:
        from moebench.harness.cli.calibrate_quick import calibrate_quick

        _refuse_with_quick(given)
        _check_files(out, store)
        calibrate_quick(out, store, json)
        return
    checkpoint, link_gb_s = _measured(given)
    on_gpu = _on_gpu(given, link_gb_s)
    _check_files(out, store)

    from moebench.harness.machines.calibrate import calibrate as measure
    from moebench.harness.machines.profile import write_profile
    from moebench.substrate.machines import accelerator

    precision = given.get("precision") or ("bf16" if on_gpu else "fp32")
    card = accelerator.Cuda() if on_gpu else None
    profile = measure(checkpoint, link_gb_s, store, card, precision)
    write_profile(profile, out)
    if json:
        print(json_text.dumps(profile, sort_keys=True, default=str))
        return
    measured = profile["measured"]
    rows = [
        [side, kind, f"{p['rows']}", f"{p['pairs'] or ''}", f"{p['ns'] / 1e6:.4g}",
         f"{p['spread']:.0%}"]
        for side in ("device", "host")
        for kind, points in measured[side].items()
        for p in points
    ]  # fmt: skip
    headers = ["side", "operation", "rows", "pairs", "ms", "middle half"]
    console.table(profile["description"], headers, rows)
    parts = [
        [name.removesuffix("_ns").replace("_", " "), f"{measured[name] / 1e6:.4g}"]
        for name in measured
        if name.endswith("_ns")
    ]
    console.table("", ["part", "ms"], parts)
    # Not through the package's links: their paths are of no use elsewhere.
    shape = checkpoint.resolve() / "config.json"
    console.say(
        f"{profile['calibration']['error']['source']}; profile in {out}: use it with "
        f"--machine {out} --model {shape} --precision {precision}"
    )


@takes(
    *MEASURED, "device", "precision", "cache_ratio", "workload", "batch", "prompts", "new_tokens",
    "calibrate_texts",
    **CHANGED, cache_ratio=Changed(default=0.25), batch=Changed(default=1, min=1),
    prompts=Changed(default=4, min=1), new_tokens=Changed(default=16, min=2),
)  # fmt: skip
def validate(
    context: typer.Context,
    given: dict[str, Any],
    rows: Annotated[
        Path | None, argument("With --published: CSV file or folder of rows [those that ship].")
    ] = None,
    profile: Annotated[Path | None, option("Profile written by moebench calibrate.")] = None,
    systems: Annotated[
        str | None, option("Systems, separated by commas [seven of different kinds].")
    ] = None,
    set_: Annotated[
        list[str] | None, option("Option of one system, as system.key=value; repeatable.", "--set")
    ] = None,
    repeats: Annotated[int, option("Measured runs of each system; tokens are pooled.", min=1)] = 3,
    published: Annotated[
        bool, option("Predict measurements that other people published.", "--published")
    ] = False,
    left_out: Annotated[
        bool, option("With --published: show errors with machine and author left out.",
                     "--left-out")
    ] = False,
    check: Annotated[
        bool, option("With --published: compare the errors with the accepted ones.", "--check")
    ] = False,
    html: Annotated[
        Path | None, option("With --published: file of a page, predicted against measured.")
    ] = None,
    add_row: Annotated[
        Path | None, option("Write a CSV template of published rows, or check a file of them.")
    ] = None,
    data_dir: DATA_DIR = None,
    store: STORE = DEFAULT_STORE,
    out: Annotated[Path | None, option("File to write the table to, as JSON.")] = None,
    json: JSON = False,
) -> None:  # fmt: skip
    """Compare measured with simulated latencies: on this computer, or as others published them.

    Exit code: 0 done, 1 a row of --add-row is incomplete or --check finds larger errors, 4 it finds
    smaller ones: make fit accepts them.
    """
    from moebench.harness.arguments import find_data_dir, require_file, require_writable

    _only_one_mode(context, published, add_row is not None)
    if add_row is not None or published:
        from moebench.harness.cli import published as rows_of_others

        if add_row is not None:
            raise typer.Exit(0 if rows_of_others.add_row(add_row) else 1)
        raise typer.Exit(rows_of_others.show(rows, left_out, check, html, out, json))
    if profile is None:
        raise UsageError("--profile: give a profile of moebench calibrate, or --published")
    checkpoint, link_gb_s = _measured(given)
    _on_gpu(given, link_gb_s)
    if out is not None:
        require_file("--out", out)
    require_writable(store)

    from moebench.harness.machines.validate import Request
    from moebench.harness.machines.validate import validate as measure
    from moebench.substrate.files import write_text
    from moebench.substrate.machines.profile import load_profile

    load_profile(str(profile))  # before anything runs
    options = _options((systems or SYSTEMS).split(","), set_ or [])
    folder = find_data_dir(data_dir)
    request = Request(profile, checkpoint, link_gb_s, options, repeats, given, folder)
    document = measure(request, store, console.say)
    if out is not None:
        write_text(out, json_text.dumps(document, indent=1, sort_keys=True) + "\n")
    if json:
        console.print_json(document)
    else:
        _show(document)


def _only_one_mode(context: typer.Context, published: bool, add_row: bool) -> None:
    """Refuse options that the chosen mode does not have: published rows, a new row, or runs.

    Raises UsageError: names the first such option.
    """
    if published and add_row:
        raise UsageError("--add-row: checks one file and predicts nothing; leave out --published")
    modes = {"--published": PUBLISHED, "--add-row": ADD_ROW}
    mode = "--published" if published else "--add-row" if add_row else ""
    for param in context.command.params:
        name = str(param.name)
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE":
            continue
        typed = "ROWS" if name == "rows" else param.opts[0]
        if mode and name not in modes[mode]:
            raise UsageError(f"{typed}: not with {mode}, which runs no system; leave out one")
        if not mode and name in {*PUBLISHED, *ADD_ROW} - {"out", "json"}:
            raise UsageError(f"{typed}: only for published rows; add --published")


def _refuse_with_quick(given: Mapping[str, Any]) -> None:
    """Refuse options of the measurement with a checkpoint.

    Raises UsageError: names the first such option.
    """
    for name, value in given.items():
        if value is not None:
            raise UsageError(
                f"{OPTIONS[name].flag}: not with --quick, which measures without a checkpoint; "
                "leave out one of both"
            )


def _check_files(out: Path, store: Path) -> None:
    """Refuse a profile's file or a store that cannot be written.

    Raises InputError: names the file.
    """
    from moebench.harness.arguments import require_file, require_writable

    if out.is_dir() or not out.absolute().parent.is_dir():
        raise InputError(f"--out {out}: give a file in a folder that exists, for example here.yaml")
    if out.suffix != ".yaml":
        raise InputError(f"--out {out}: a profile's name ends in .yaml, for example here.yaml")
    require_file("--out", out)
    require_writable(store)


def _measured(given: dict[str, Any]) -> tuple[Path, float | None]:
    """Take the checkpoint and the rate of its emulated link, in GB/s, out of what was given."""
    weights, model, link = (given.pop(name, None) for name in MEASURED)
    return _checkpoint(None if weights is None else Path(weights), model), link


def _on_gpu(given: Mapping[str, Any], link_gb_s: float | None) -> bool:
    """Return whether a CUDA device is measured.

    Raises UsageError: no such device, or an option that the device does not have.
    """
    device, precision = given.get("device") or "cpu", given.get("precision") or "fp32"
    if device not in ("cpu", "cuda"):
        raise UsageError(f"--device {device}: allowed: cpu, cuda")
    if device == "cuda" and link_gb_s is not None:
        raise UsageError("--emulated-link: a GPU is behind its own link; leave out one of both")
    if device == "cpu" and precision != "fp32":
        raise UsageError(f"--precision {precision}: the processor has fp32; add --device cuda")
    return bool(device == "cuda")


def _checkpoint(weights: Path | None, model: str | None) -> Path:
    """Return the folder of the given checkpoint, or of the given model's scale model.

    Raises UsageError: neither was given, or both.
    """
    from moebench.substrate.models.catalogue import scale_names, scale_path

    if (weights is None) == (model is None):
        raise UsageError("give --weights DIR, or --model NAME, whose scale model is meant")
    if weights is not None:
        return weights
    if model not in scale_names():
        allowed = ", ".join(scale_names())
        raise UsageError(f"--model {model}: no scale model of it ships; allowed: {allowed}")
    return scale_path(model)


def _options(systems: list[str], pairs: list[str]) -> dict[str, dict[str, str]]:
    """Return the options of each system, from ``system.key=value``.

    Raises UnknownNameError, UsageError: no such system, or an option that names none of these.
    """
    from moebench.harness.arguments import parse_overrides
    from moebench.systems.registry import system_class

    for name in systems:
        system_class(name)
    options: dict[str, dict[str, str]] = {name: {} for name in systems}
    for key, value in parse_overrides(pairs).items():
        name, dot, option = key.partition(".")
        if not dot or name not in options:
            raise UsageError(
                f"--set {key}={value}: name the system, for example daop.place=by-id; systems "
                f"here: {', '.join(options)}"
            )
        options[name][option] = value
    return options


def _show(document: dict[str, Any]) -> None:
    """Print the table of errors and, below it, the error of all systems together."""
    rows = []
    for row in document["rows"]:
        cells = [row["system"] + (" (noisy)" if row["noisy"] else "")]
        for figure in ("tpot_ms", "ttft_ms"):
            one = row[figure]
            cells += [f"{one['measured']:.4g}", f"{one['simulated']:.4g}", f"{one['error']:+.1%}"]
        for figure in ("bytes", "hits"):
            one = row[figure]
            scale = 1e9 if figure == "bytes" else 1
            real, guess = one["measured"] / scale, one["simulated"] / scale
            cells.append(f"{real:.4g}" if real == guess else f"{real:.4g} / {guess:.4g}")
        resident = " ".join(f"{one:+.0%}" for one in row["resident"])
        rows.append([*cells, f"{row['spread']:.0%}", resident])
    headers = [
        "system", "TPOT ms", "simulated", "error", "TTFT ms", "simulated", "error", "GB moved",
        "hits", "spread", "resident",
    ]  # fmt: skip
    console.table(f"{document['profile']}: {document['model']}", headers, rows)
    for one in document["not_possible"]:
        console.say(f"not possible here: {one['system']}: {one['reason']}")
    console.say(
        "error: of the time over the resident model's, whose tokens were measured between the "
        "system's; resident: the error of these tokens in each run: so much the computer has moved "
        "since it was calibrated"
    )
    s = document["summary"]
    verdict = "met" if all(s["met"].values()) else "not met"
    console.say(
        f"TPOT off by {s['tpot_mean']:.1%} in the mean and {s['tpot_worst']:.1%} at worst, TTFT by "
        f"{s['ttft_worst']:.1%} at worst; rank correlation {s['rank_correlation']}; targets 5 %, "
        f"10 % and 10 %: {verdict}"
    )
