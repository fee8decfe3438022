"""``moebench eval``: an evaluator asks a system, and what it finds is stored."""

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer

from moebench.harness.cli.parameters import DATA_DIR, DEFAULT_STORE, JSON, STORE


def evaluate(
    engine: Annotated[str, typer.Option(help="lm-eval or opencompass.")],
    tasks: Annotated[str, typer.Option(help="Workloads, separated by commas.")],
    system: Annotated[str, typer.Option(help="See: moebench list systems; or module:Class.")],
    variant: Annotated[
        str | None, typer.Option(help="published [default], or shipped: as its authors' code.")
    ] = None,
    setting: Annotated[str | None, typer.Option(help="See: moebench list settings.")] = None,
    machine: Annotated[str | None, typer.Option(help="Profile, file.yaml, or local.")] = None,
    software: Annotated[str | None, typer.Option(help="See: moebench list software.")] = None,
    model: Annotated[str | None, typer.Option(help="Model whose bytes are charged.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Checkpoint that does the maths.")] = None,
    precision: Annotated[str | None, typer.Option(help="bf16, fp16, fp32, 4bit or 2bit.")] = None,
    batch: Annotated[int | None, typer.Option(help="Requests answered together [1].")] = None,
    alpha: Annotated[float | None, typer.Option(help="Substitution threshold α.")] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Questions of each task.")] = 32,
    few_shot: Annotated[
        str, typer.Option(help="Worked examples before a question; paper: as it did.")
    ] = "0",
    mode: Annotated[
        str | None, typer.Option(help="decode [default], or prefill: one pass a likelihood.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Tokens of the longest text [2048, or the model's].")
    ] = None,
    cache_ratio: Annotated[float | None, typer.Option(help="Experts on the device, 0-1.")] = None,
    slots: Annotated[int | None, typer.Option(help="The same, in number.")] = None,
    allow_overcommit: Annotated[bool, typer.Option(help="Pretend the device is larger.")] = False,
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value, repeatable.")] = None,
    calibrate_from: Annotated[
        str | None, typer.Option(help="Workload whose train split a learning system learns from.")
    ] = None,
    calibrate_texts: Annotated[
        int | None, typer.Option(help="How many texts it is shown [its paper's number].")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Draws the questions.")] = 0,
    task_files: Annotated[
        Path | None, typer.Option(help="lm-eval: write its task files to this folder and stop.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Keep the evaluator's own files in this folder.")
    ] = None,
    data_dir: DATA_DIR = None,
    store: STORE = DEFAULT_STORE,
    force: Annotated[bool, typer.Option(help="Evaluate again even if it is stored.")] = False,
    json: JSON = False,
) -> None:
    """Let lm-eval or OpenCompass ask a system, with local data; store and show what it finds."""
    from moebench.harness.arguments import find_data_dir, parse_overrides
    from moebench.harness.evaluate.run import evaluator
    from moebench.harness.evaluate.tasks import draw

    asks = evaluator(engine)
    folder = find_data_dir(data_dir)
    given = {
        "system": system, "variant": variant, "setting": setting, "machine": machine,
        "software": software, "model": model, "weights": None if weights is None else str(weights),
        "precision": precision, "batch": batch, "alpha": alpha, "cache_ratio": cache_ratio,
        "slots": slots, "allow_overcommit": allow_overcommit or None,
        "calibrate_from": calibrate_from, "calibrate_texts": calibrate_texts, "seed": seed,
        "overrides": parse_overrides(set_ or []),
    }  # fmt: skip
    asked = draw(tasks.split(","), prompts, seed, few_shot, setting, folder)
    asks.check(asked)
    if task_files is not None:
        _write(engine, asked, task_files)
        return
    document = _evaluate(engine, asked, given, mode, max_length, folder, keep, store, force)
    if json:
        print(json_module.dumps(document, sort_keys=True))
    else:
        _show(document, store)


def _write(engine: str, asked: Any, folder: Path) -> None:
    from moebench.harness import console
    from moebench.harness.evaluate.lm_eval_tasks import write_tasks
    from moebench.substrate.errors import UsageError

    if engine != "lm-eval":
        raise UsageError(f"--task-files and --engine {engine}: only lm-eval has task files")
    write_tasks(asked, folder)
    names = ",".join(questions.name for questions in asked)
    console.stderr().print(
        f"written; type: python -m moebench.lm_eval run --model moebench --model_args "
        f"system=smoe,setting=S3 --include_path {folder} --tasks {names}",
        markup=False,
    )


def _evaluate(
    engine: str, asked: Any, given: dict[str, Any], mode: str | None, max_length: int | None,
    data_dir: Path | None, keep: Path | None, directory: Path, force: bool,
) -> dict[str, Any]:  # fmt: skip
    """The stored document of this evaluation, or a new one, which is stored."""
    from moebench.harness import console
    from moebench.harness.arguments import require_writable
    from moebench.harness.evaluate.run import about, evaluate, evaluator
    from moebench.harness.evaluate.session import prepare_evaluated, resolve_evaluated
    from moebench.results.store import Store

    spec = resolve_evaluated(data_dir, mode, **given)
    console.say_refused([spec.system])
    require_writable(directory)
    version = evaluator(engine).version()
    session = about(prepare_evaluated(spec, data_dir, max_length), engine, version, asked)
    store = Store(directory)
    stored = None if force else store.get(session.run_id)
    if stored is not None:
        console.stderr().print(f"run {session.run_id} was stored; --force evaluates again")
        return stored
    with console.progress(f"{engine} asks {spec.title}") as progress:
        outcome = evaluate(session, engine, version, asked, directory, progress, keep)
    store.put(outcome.document, outcome.picture)
    return outcome.document


def _show(document: dict[str, Any], store: Path) -> None:
    from moebench.harness import console
    from moebench.reports.sections.evaluations import HEADERS, lines

    console.show_run(document, store)
    console.table("what the evaluator found", HEADERS, lines([document]))
