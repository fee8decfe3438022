"""``moebench run`` and ``moebench sweep``: what may be typed."""

from pathlib import Path
from typing import Annotated

import typer

from moebench.harness.cli.parameters import DATA_DIR, DEFAULT_STORE, JSON, STORE


def run(
    system: Annotated[str, typer.Option(help="See: moebench list systems; or module:Class.")],
    variant: Annotated[
        str | None, typer.Option(help="published [default], or shipped: as its authors' code.")
    ] = None,
    setting: Annotated[str | None, typer.Option(help="See: moebench list settings.")] = None,
    workload: Annotated[str | None, typer.Option(help="See: moebench list workloads.")] = None,
    machine: Annotated[str | None, typer.Option(help="Profile, file.yaml, or local.")] = None,
    software: Annotated[str | None, typer.Option(help="See: moebench list software.")] = None,
    model: Annotated[str | None, typer.Option(help="Model whose bytes are charged.")] = None,
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
    seeds: Annotated[
        int | None,
        typer.Option(min=2, max=1000, help="So many, from --seed on: means, 95 % intervals."),
    ] = None,
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
    from moebench.harness.arguments import parse_gib, parse_rate
    from moebench.harness.cli.run import RunRequest, run_command

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
    request = RunRequest(
        given, set_ or [], data_dir, store, timeline, seeds, force, not no_interval, json
    )
    run_command(request)


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
