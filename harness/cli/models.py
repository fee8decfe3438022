"""``moebench models``: imports and downloads weights; trains and verifies scale models."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moebench.harness import console
from moebench.harness.cli.parameters import JSON, argument, option
from moebench.substrate.errors import InputError, UnknownNameError, UsageError

if TYPE_CHECKING:
    from moebench.harness.scale.checkpoint import Progress

app = typer.Typer(
    help="Weights and scale models: import, fetch, list, train, verify, targets.",
    no_args_is_help=True,
)

#: Default folders of scale models that a user trains, of imported weights, and of downloads.
OWN, IMPORTED, FETCHED = Path(".moebench/models"), Path(".moebench/weights"), Path(".moebench/hub")

#: Types in which expert records may be stored.
PRECISIONS = ("bf16", "fp16", "fp32")


class Device(StrEnum):
    """PyTorch devices for training."""

    cpu = "cpu"
    cuda = "cuda"


@app.command("list")
def list_(json: JSON = False) -> None:
    """List the scale models that can be trained."""
    rows = _rows()
    if json:
        console.print_json(rows)
        return
    headers = list(rows[0])
    lines = [["-" if row[h] is None else str(row[h]) for h in headers] for row in rows]
    console.table("scale models", headers, lines)


@app.command()
def train(
    name: Annotated[str, argument("See: moebench models list.")],
    data_dir: Annotated[Path | None, option("Folder that contains the training sets.")] = None,
    start: Annotated[
        Path | None,
        option("Trained model to fine-tune towards the routing locality of its family.", "--from"),
    ] = None,
    out: Annotated[Path | None, option("[default: .moebench/models/NAME, or NAME-local]")] = None,
    tokens: Annotated[
        int | None, option("Training tokens [4M; with --from 400k to 800k].", min=1)
    ] = None,
    seed: Annotated[
        int | None,
        option("Random seed for weights and data [0; with --from the earlier one].", min=0),
    ] = None,
    balance: Annotated[
        float | None, option("Weight of the load-balancing loss [0.08, decreasing to half].", min=0)
    ] = None,
    device: Annotated[Device, option("PyTorch device to train on.")] = Device.cpu,
    threads: Annotated[int, option("Number of CPU threads.", min=1)] = 1,
) -> None:
    """Train a scale model; the same command resumes an interrupted training."""
    from moebench.harness.arguments import find_data_dir
    from moebench.harness.scale.widths import scale_config

    scale_config(name)  # an unknown name shows before data is read
    data = find_data_dir(data_dir)
    if data is None:
        raise UsageError("training reads a data folder; give --data-dir DIR")

    import torch

    from moebench.harness.scale.files import read_training
    from moebench.harness.scale.recipe import TrainingRecipe, second_training
    from moebench.harness.scale.training import train as train_model

    if device is Device.cuda and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no CUDA device here; use --device cpu")
    torch.set_num_threads(threads)
    if start is None:
        out, falls_to = out or OWN / name, 0.5
        recipe = TrainingRecipe(tokens=4_000_000)
    else:
        out, falls_to = out or OWN / f"{name}-local", 1.0
        recipe = second_training(name, read_training(start).get("recipe") or {})
    chosen = {"tokens": tokens, "seed": seed, "balance": balance}
    if balance is not None:
        chosen["balance_end"] = falls_to * balance
    recipe = recipe.model_copy(update={k: v for k, v in chosen.items() if v is not None})
    console.say(f"{name}: reading {data}")
    with _progress(name) as report:
        final = train_model(name, data, out, recipe, start, device.value, report)
    console.say(
        f"held-out loss {final['held_out_loss']}, a unigram's {final['unigram_loss']}; in {out}"
    )
    console.say(
        f"use it: moebench run --system smoe --model {name} --weights {out} --machine a6000"
    )


@app.command("import")
def import_(
    source: Annotated[Path, argument("Folder of a Hugging Face checkpoint.", metavar="DIR")],
    out: Annotated[
        Path | None, option("[default: .moebench/weights/NAME; of a scale model, models]")
    ] = None,
    dtype: Annotated[
        str | None,
        option("Precision of the expert records: fp32 [computation precision], bf16 or fp16."),
    ] = None,
    scale: Annotated[
        str | None, option("Import the checkpoint as the scale model of this full-size model.")
    ] = None,
) -> None:
    """Split a checkpoint into non-expert weights and expert records, or import a scale model."""
    if scale is None:
        _import_weights(source, out, dtype or "fp32")
        return
    if dtype is not None:
        raise UsageError("--dtype and --scale: a scale model is stored as fp16")
    from moebench.substrate.models.catalogue import model_shape

    model_shape(scale)  # an unknown name shows before torch is imported

    from moebench.harness.scale.files import import_model

    out = out or OWN / scale
    entry = import_model(source, scale, out)
    console.say(f"{entry['bytes'] / 1e6:.1f} MB, {entry['parameters']:,} parameters in {out}")
    console.say(
        f"use it: moebench run --system smoe --model {scale} --weights {out} --machine a6000"
    )


def _import_weights(source: Path, out: Path | None, precision: str) -> None:
    """Import a full-size checkpoint; an interrupted import is resumed."""
    from moebench.substrate.models.config import read_shape

    if precision not in PRECISIONS:
        raise UsageError(f"--dtype {precision}: allowed: {', '.join(PRECISIONS)}")
    read_shape(source / "config.json")  # what is wrong with it shows before torch is imported

    from moebench.substrate.models.imported import import_checkpoint

    out = out or IMPORTED / source.resolve().name
    with console.progress(f"import {source.name}") as progress:
        found = import_checkpoint(source, out, precision, progress)
    assert found.store is not None
    size = found.store.total_bytes + sum(f.stat().st_size for f in found.files[:-1])
    count = len(found.manifest.records)
    console.say(
        f"{count} expert records of {found.store.record_bytes / 1e6:.4g} MB ({precision}) and the "
        f"common weights, {size / 1e9:.4g} GB, in {out}"
    )
    console.say(
        f"use it: moebench run --system smoe --weights {out} --machine local --capacity 0.25"
    )


@app.command()
def fetch(
    repo: Annotated[str, argument("Repository on the hub: OWNER/NAME.", metavar="REPO")],
    out: Annotated[Path | None, option("[default: .moebench/hub/OWNER/NAME]")] = None,
    revision: Annotated[str | None, option("Branch, tag or commit [main].")] = None,
) -> None:
    """Download a checkpoint from the Hugging Face hub; existing files are kept."""
    from moebench.harness.hub import fetch as download

    out = out or FETCHED / repo
    download(repo, out, revision)
    console.say(f"{repo} in {out}")
    console.say(
        f"use it: moebench run --system smoe --weights {out} --machine local --capacity 0.25"
    )
    console.say(f"or split it once, so that later starts are short: moebench models import {out}")


@app.command()
def verify(
    target: Annotated[
        str | None, argument("Scale model or folder of imported weights.", metavar="NAME|DIR")
    ] = None,
    all_: Annotated[bool, option("Verify every shipped scale model.", "--all")] = False,
    data_dir: Annotated[
        Path | None, option("Folder of evaluation sets; adds routing statistics on prose.")
    ] = None,
    quick: Annotated[bool, option("Use 32 exercises of each family instead of 100.")] = False,
    write: Annotated[
        bool, option("Update the manifest and the table in the documentation.")
    ] = False,
    json: JSON = False,
) -> None:
    """Measure a model's quality and routing; compare them with the targets and the manifest."""
    from moebench.harness.arguments import find_data_dir

    if write and quick:
        raise UsageError("--write records the full measurement; leave --quick out")
    if target is not None and (Path(target) / "import.json").exists():
        _verify_weights(Path(target), json)
        return
    paths = _paths(target, all_)
    data = None if data_dir is None else find_data_dir(data_dir)
    failed = False
    documents = {}
    for path in paths:
        documents[path.name] = document = _verify(path, data, quick, write)
        failed |= bool(document["differences"])
        if not json:
            from moebench.harness.scale.tables import show

            show(path, document)
    if write:
        from moebench.harness.scale import tables as model_tables

        model_tables.write_docs(model_tables.DOCS)
    if json:
        console.print_json(documents)
    raise typer.Exit(1 if failed else 0)


def _verify_weights(path: Path, json: bool) -> None:
    """Check the hashes of imported weights."""
    from moebench.substrate.models.imported import Imported

    found = Imported(path)
    with console.progress(f"verify {path.name}") as progress:
        found.verify(progress)
    files, records = len(found.manifest.files), len(found.manifest.records)
    if json:
        console.print_json({path.name: {"files": files, "records": records}})
    else:
        console.say(f"{files} files and {records} records are what was imported")


@app.command()
def targets(
    data_dir: Annotated[
        Path | None, option("Data folder whose traces/ contains the recordings.")
    ] = None,
    write: Annotated[bool, option("Write the measured ranges to the target file.")] = False,
    json: JSON = False,
) -> None:
    """Measure the routing of real models' recordings and compare it with the target file."""
    from moebench.harness.arguments import find_data_dir
    from moebench.harness.scale import targets as ranges

    data = find_data_dir(data_dir)
    if data is None:
        raise UsageError("targets are measured on recordings of a data folder; give --data-dir DIR")
    with console.progress("recordings") as progress:
        measured = ranges.measure(data, progress)
    if write:
        ranges.write(measured)
    differences = [] if write else ranges.differences(measured)
    if json:
        families = [{**m.evidence.model_dump(), "figures": m.figures} for m in measured]
        console.print_json({"families": families, "differences": differences})
    else:
        for one in measured:
            ranges.show(one)
        for line in differences:
            console.say(line)
    raise typer.Exit(1 if differences else 0)


def _verify(path: Path, data: Path | None, quick: bool, write: bool) -> dict[str, Any]:
    from moebench.substrate.models.catalogue import check_files

    entry = None if write else check_files(path)

    from moebench.harness.scale.files import write_entry
    from moebench.harness.scale.verify import ScaleModel, differences, judged, measure

    model = ScaleModel.open(path)
    with console.progress(f"verify {path.name}") as progress:
        measured = measure(model, data, quick, progress)
    if entry is None:
        entry = write_entry(path, measured)
    recorded = entry["measured"]
    return {
        "training": entry["training"],
        "measured": measured,
        "targets": {s: judged(path.name, found) for s, found in measured["statistics"].items()},
        "compared": recorded is not None,
        "differences": [] if recorded is None else differences(measured, recorded),
    }


def _paths(target: str | None, every: bool) -> list[Path]:
    """Return the folders to verify: all shipped scale models, or the given one.

    What holds a slash is a folder, so that one's own training of a shipped model can be named.
    """
    from moebench.substrate.models.catalogue import scale_names, scale_path

    shipped = scale_names()
    if every == (target is not None):
        raise UsageError("give one name or folder, or --all; see: moebench models list")
    if target is None:
        return [scale_path(name) for name in shipped]
    if "/" in target:
        if not (Path(target) / "config.json").is_file():
            raise InputError(f"{target}: no scale model (config.json) in this folder")
        return [Path(target)]
    if target in shipped:
        return [scale_path(target)]
    own = sorted(path.parent.name for path in OWN.glob("*/config.json"))
    if target not in own:
        hint = "train it with: moebench models train NAME --data-dir DIR"
        raise UnknownNameError("scale model", target, [*shipped, *own], hint)
    return [OWN / target]


def _rows() -> list[dict[str, Any]]:
    from moebench.harness.scale.widths import SCALE_WIDTHS, scale_config
    from moebench.substrate.models.catalogue import read_manifest, scale_names, scale_path
    from moebench.substrate.models.config import read_shape, shape_of

    shipped, rows = scale_names(), []
    manifest, own = read_manifest(), read_manifest(OWN)
    for name in sorted(SCALE_WIDTHS):
        path = scale_path(name) if name in shipped else OWN / name
        there = (path / "config.json").exists()
        shape = read_shape(path / "config.json") if there else shape_of(scale_config(name))
        weights = path / "model.safetensors"
        entry = (manifest if name in shipped else own).get(name) or {}
        accuracy = (entry.get("measured") or {}).get("accuracy") or {}
        rows.append(
            {
                "model": name,
                "weights": "shipped" if name in shipped else str(path) if there else None,
                # What is not there yet: its fp16 weights, without the file's list of tensors.
                "megabytes": round(
                    (weights.stat().st_size if weights.exists() else 2 * shape.total_params) / 1e6,
                    1,
                ),
                "params_m": round(shape.total_params / 1e6, 2),
                "layers": shape.num_layers,
                "moe_layers": len(shape.moe_layers),
                "experts": shape.num_experts,
                "top_k": shape.top_k,
                # In widths of one routed expert.
                "shared": round(shape.shared_width / shape.expert_width) or None,
                "held_out_loss": (entry.get("training") or {}).get("held_out_loss"),
                "accuracy": ", ".join(f"{f} {a['score']:.0%}" for f, a in accuracy.items()) or None,
            }
        )
    return rows


@contextmanager
def _progress(name: str) -> "Iterator[Any]":
    """Show training progress with the loss, as a bar or as a line every fifty steps."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    stderr = console.stderr()
    if not stderr.is_terminal:
        yield _line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, TimeRemainingColumn(), console=stderr, transient=True) as bar:
        task = bar.add_task(name, total=None)

        def report(now: "Progress") -> None:
            what = f"{name} loss {now.loss:.3f} {now.tokens_per_s:,.0f} tokens/s"
            bar.update(task, completed=now.step, total=now.steps, description=what)

        yield report


def _line(now: "Progress") -> None:
    if now.step % 50 == 0 or now.step == now.steps:
        said = f"step {now.step}/{now.steps} loss {now.loss:.3f} {now.tokens_per_s:.0f} tokens/s"
        print(said, file=sys.stderr, flush=True)
