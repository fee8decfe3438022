"""``moebench trace``: records, describes, imports and draws routing traces."""

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moebench.harness import console
from moebench.harness.cli.options import Changed, takes
from moebench.harness.cli.parameters import JSON, argument, option
from moebench.harness.cli.trace_caches import caches
from moebench.substrate.errors import UsageError

if TYPE_CHECKING:
    from moebench.substrate.analysis.targets import Target
    from moebench.substrate.traces.recipes import SynthesisRecipe

app = typer.Typer(
    help="Routing traces: record, info, caches, import, synthesize, fit.", no_args_is_help=True
)

#: Tokens that a trace's statistics are measured on.
STATISTICS_TOKENS = 4096

OUT = Annotated[Path, option("Folder to write the trace to; it must not exist.")]


class Kept(StrEnum):
    """Floating-point types of recorded scores."""

    float16 = "float16"
    float32 = "float32"


@app.command()
@takes(
    "system", "setting", "model", "weights", "machine", "cache_ratio", "alpha", "overrides",
    "batch", "prompts", "new_tokens", "seed",
    system=Changed("System whose run is recorded.", default="gpu-only"),
    machine=Changed("Machine to run on, for systems that depend on it."),
)  # fmt: skip
def record(
    out: Annotated[
        Path, option("Folder to write the trace to; with several traces, their parent folder.")
    ],
    given: dict[str, Any],
    workload: Annotated[
        str | None,
        option("Workloads, separated by commas; one trace for each.", "--workload", "--workloads"),
    ] = None,
    all_: Annotated[bool, option("Record every shipped scale model.", "--all")] = False,
    scores: Annotated[
        Kept, option("Type of the stored scores; a float32 trace replays exactly as the live run.")
    ] = Kept.float16,
    states: Annotated[
        bool | None,
        option(
            "Record hidden states and embeddings as well [for scale models].",
            "--states/--no-states",
            show_default=False,
        ),
    ] = None,
    data_dir: Annotated[Path | None, option("Folder of evaluation sets.")] = None,
) -> None:
    """Record the routing of a run; with float16 the run itself uses the rounded scores."""
    from moebench.harness.api.trace import record as record_traces
    from moebench.harness.arguments import find_data_dir
    from moebench.harness.run.recording import Recorded

    workloads = [None] if workload is None else workload.split(",")
    record_traces(
        given, workloads, find_data_dir(data_dir), out, all_, Recorded(scores.value, states),
        console.progress, console.say,
    )  # fmt: skip


@app.command()
def info(
    trace: Annotated[str, argument("Folder of a trace, or a shipped trace's name.", metavar="DIR")],
    tokens: Annotated[
        int,
        option("Compute statistics over the first sequences, up to this number of tokens.", min=1),
    ] = STATISTICS_TOKENS,
    json: JSON = False,
) -> None:
    """Show a trace's content, source and routing statistics."""
    from moebench.substrate.analysis.statistics import summary
    from moebench.substrate.traces.catalogue import find_trace
    from moebench.substrate.traces.file import open_trace
    from moebench.substrate.traces.replay import routings

    opened = open_trace(find_trace(trace))
    dict(opened.arrays)  # a broken one is said here, not by the first run that reads it
    header, measured = opened.header, routings(opened, tokens)
    document = {
        "trace": trace, "hash": opened.hash, **header.model_dump(mode="json"),
        "holds": list(header.holds), "sequences": len(opened.sequences),
        "tokens": {
            "prefill": sum(opened.prompts),
            "decode": len(opened.ids_TLK) - sum(opened.prompts),
        },
        "measured_sequences": len(measured),
        "statistics": summary(measured, header.num_experts),
    }  # fmt: skip
    if json:
        console.print_json(document)
        return
    shown = {k: v for k, v in document.items() if k not in ("arrays", "statistics", "source")}
    shown |= {f"source: {k}": v for k, v in header.source.items() if k != "spec"}
    arrays = {f"array: {name}": f"{a.dtype} {list(a.shape)}" for name, a in header.arrays.items()}
    console.table("trace", ["what", "value"], _lines(shown | arrays))
    title = f"routing statistics of {len(measured)} of {len(opened.sequences)} sequences"
    console.table(title, ["statistic", "value"], _lines(_flat(document["statistics"])))


app.command()(caches)


@app.command("import")
def import_(
    source: Annotated[Path, argument("Folder with meta.json and its arrays.", metavar="FOLDER")],
    out: OUT,
    model: Annotated[
        str | None, option("Model of the catalogue [the one that meta.json names].")
    ] = None,
    prompt_tokens: Annotated[
        int | None,
        option("Number of tokens that are the prompt; the others count as decoded.", min=1),
    ] = None,
) -> None:
    """Import a published trace of chosen experts, with or without gate scores."""
    from moebench.harness.arguments import require_new
    from moebench.substrate.traces.published import import_trace

    require_new("--out", out)
    header = import_trace(source, out, model, prompt_tokens)
    for note in header.notes:
        console.say(f"note: {note}")
    console.say(_how_to_use(out, header.model))


def _how_to_use(trace: Path, model: str) -> str:
    """Return a command that replays the trace, after checking that it would run."""
    from moebench.harness.run.replay import prepare
    from moebench.harness.run.rules import resolve
    from moebench.substrate.errors import MoeBenchError, UnknownNameError
    from moebench.substrate.machines.profile import profile_names

    reason = ""
    for machine in ("a6000", *profile_names()):
        given = {"trace": str(trace), "system": "moe-ondemand", "machine": machine}
        try:
            prepare(resolve(None, **given), None).check_memory()
        except UnknownNameError:
            return (
                f"{model} is not in the catalogue: moebench run --trace {shlex.quote(str(trace))} "
                f"--system moe-ondemand --machine {machine} --model config.json, the path of its "
                "shape"
            )
        except MoeBenchError as error:
            reason = reason or str(error)
        else:
            typed = " ".join(f"--{key} {shlex.quote(value)}" for key, value in given.items())
            return f"use it: moebench run {typed}"
    return f"no machine of the catalogue replays it: {reason}"


@app.command()
def synthesize(
    model: Annotated[str, option("Model whose layers, experts and top-k are used.")],
    out: OUT,
    like: Annotated[str | None, option("Model whose fitted recipe is used.")] = None,
    static: Annotated[
        float | None, option("Share of score variance that is constant in a sequence.")
    ] = None,
    ar1: Annotated[
        float | None, option("Share of score variance that follows an AR(1) process over tokens.")
    ] = None,
    rho: Annotated[float | None, option("Coefficient of the AR(1) process.")] = None,
    noise: Annotated[
        float | None, option("Share of score variance that is white noise [the remainder].")
    ] = None,
    common: Annotated[
        float | None, option("Share of the constant part that all sequences have in common.")
    ] = None,
    depth: Annotated[
        str | None, option("Constant variance of the first, middle and last layer over the mean.")
    ] = None,
    prefill_similarity: Annotated[
        float | None, option("Cosine similarity of expert use in prefill and decode.")
    ] = None,
    recall: Annotated[
        float | None, option("Recall of the prediction of the next layer's top-k.")
    ] = None,
    spread: Annotated[float | None, option("Standard deviation of the gate logits.")] = None,
    sequences: Annotated[int, option("Number of sequences.", min=1)] = 32,
    prompt_tokens: Annotated[int, option("Prompt tokens of each sequence.", min=1)] = 128,
    new_tokens: Annotated[int, option("Decoded tokens of each sequence.", min=1)] = 129,
    seed: Annotated[int, option("Random seed.", min=0)] = 0,
    json: JSON = False,
) -> None:
    """Draw a trace with given routing statistics and compare it with real models' routing."""
    from dataclasses import replace

    from moebench.harness.arguments import require_new
    from moebench.substrate.models.catalogue import model_shape
    from moebench.substrate.traces.file import open_trace
    from moebench.substrate.traces.replay import routings
    from moebench.substrate.traces.synthesis import (
        Synthesis,
        Topology,
        compared,
        prefill_for_similarity,
    )
    from moebench.substrate.traces.synthesis import synthesize as draw

    require_new("--out", out)
    topology = Topology.of(model_shape(model))
    recipe = _recipe(
        like, noise, depth, static=static, ar1=ar1, rho=rho, common=common, recall=recall,
        spread=spread,
    )  # fmt: skip
    if prefill_similarity is not None:
        prefill = prefill_for_similarity(topology, recipe, prefill_similarity)
        recipe = replace(recipe, prefill=prefill)
    with console.progress(f"drawing {model}") as progress:
        synthesis = Synthesis(topology, recipe, seed)
        draw(synthesis, model, [prompt_tokens] * sequences, new_tokens, out, progress)
    wanted = _asked(model, prefill_similarity, recall)
    found = compared(routings(open_trace(out), STATISTICS_TOKENS), topology.experts, wanted)
    if json:
        rows = {
            name: {
                "drawn": row.drawn,
                "target": row.target and list(row.target[:2]),
                "judgement": row.judgement,
            }
            for name, row in found.items()
        }
        console.print_json({"out": str(out), "statistics": rows})
        return
    lines = [
        [name, _text(row.target and list(row.target[:2])), _text(row.drawn), row.judgement or ""]
        for name, row in found.items()
    ]
    title = f"drawn trace in {out}; targets are of texts of 128 prompt and 128 decoded tokens"
    console.table(title, ["statistic", "target", "drawn", "judgement"], lines)


def _asked(model: str, similarity: float | None, recall: float | None) -> dict[str, "Target"]:
    """Return a model's routing targets, replaced by the typed ones."""
    from moebench.substrate.analysis.targets import Target, targets

    given = {"prefill_decode_similarity": similarity, "prediction.gate": recall}
    return {
        **targets(model),
        **{name: Target(x, x, "asked") for name, x in given.items() if x is not None},
    }


@app.command()
def fit(
    models: Annotated[
        list[str] | None,
        argument("Shipped scale models, separated by commas [all].", show_default=False),
    ] = None,
    write: Annotated[
        bool, option("Write the fitted recipes to the shipped file.", "--write")
    ] = False,
) -> None:
    """Fit the synthesis recipes to the routing statistics of real models; takes minutes per model.

    Prints the recipes and the statistics that remain outside their targets.
    """
    from moebench.substrate.analysis.targets import judge, targets
    from moebench.substrate.models.catalogue import model_shape, scale_names
    from moebench.substrate.traces import fit
    from moebench.substrate.traces.recipes import as_yaml, family, write_recipe
    from moebench.substrate.traces.synthesis import Topology

    for model in models or scale_names():
        recipe, wanted = family(model), targets(model)
        if not wanted:
            raise UsageError(f"{model}: there are no targets of its routing; nothing to fit")
        topology = Topology.of(model_shape(model))
        with console.progress(f"fitting {model}") as progress:
            found = fit.fit(recipe, topology, wanted, progress)
        print(as_yaml(model, found))
        drawn = fit.drawn_statistics(found, topology)
        for name in sorted(drawn.keys() & wanted.keys()):
            low, high, _ = wanted[name]
            if not low <= drawn[name] <= high:
                said = f"{name} {drawn[name]:.3f}, target {low:g} to {high:g}"
                console.say(f"{model}: {said}: {judge(drawn[name], wanted[name])}")
        if write:
            write_recipe(model, found)


def _recipe(
    like: str | None, noise: float | None, depth: str | None, **given: float | None
) -> "SynthesisRecipe":
    """Return a family's synthesis recipe with the typed values."""
    from dataclasses import replace

    from moebench.substrate.traces.recipes import SynthesisRecipe, family

    chosen: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if depth is not None:
        try:
            first, middle, last = map(float, depth.split(","))
        except ValueError as error:
            raise UsageError(f"--depth {depth}: expected three numbers: 0.5,1.2,1") from error
        chosen["depth"] = (first, middle, last)
    if like is not None:
        recipe = replace(family(like), **chosen)
    elif "static" not in chosen:
        raise UsageError("give --like NAME, or --static and the others; see --help")
    else:
        recipe = SynthesisRecipe(**chosen)
    if noise is not None and abs(recipe.static + recipe.ar1 + noise - 1) > 0.005:
        raise UsageError(
            f"--noise {noise:g}: the variances must sum to 1, static and ar1 leave "
            f"{1 - recipe.static - recipe.ar1:.3g}"
        )
    return recipe


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested figures to dotted names."""
    if not isinstance(values, dict):
        return {prefix: values}
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return found


def _lines(values: dict[str, Any]) -> list[list[str]]:
    return [[name, _text(value)] for name, value in values.items()]


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{k} {_text(v)}" for k, v in value.items()) or "-"
    return str(value)
