"""``moebench eval``: evaluates a system with lm-eval or OpenCompass and stores the result."""

import json as json_module
from pathlib import Path
from typing import Annotated, Any

from moebench.harness.cli.options import Changed, takes
from moebench.harness.cli.parameters import DATA_DIR, DEFAULT_STORE, JSON, STORE, option
from moebench.results.spec import OPTIONS

#: An evaluator computes answers, and chooses questions itself.
OFFERED = [name for name, option in OPTIONS.items() if "evaluated" in option.on]


@takes(*OFFERED, batch=Changed("Requests decoded together."),
       seed=Changed("Random seed for drawing the examples.", default=0, min=0))  # fmt: skip
def evaluate(
    engine: Annotated[str, option("Evaluator: lm-eval or opencompass.")],
    tasks: Annotated[str, option("Workloads, separated by commas.")],
    given: dict[str, Any],
    prompts: Annotated[int, option("Examples of each task.", min=1)] = 32,
    few_shot: Annotated[
        str, option("Worked examples before each question; paper: as many as the paper used.")
    ] = "0",
    mode: Annotated[
        str | None,
        option("How likelihoods are computed: by decode [default] or by one prefill pass."),
    ] = None,
    max_length: Annotated[
        int | None, option("Longest text in tokens [2048, or the model's maximum].")
    ] = None,
    task_files: Annotated[
        Path | None, option("With lm-eval: write the task files to this folder and exit.")
    ] = None,
    keep: Annotated[
        Path | None, option("Folder in which the evaluator's own files are kept.")
    ] = None,
    data_dir: DATA_DIR = None,
    store: STORE = DEFAULT_STORE,
    force: Annotated[bool, option("Evaluate again even if the result is stored.")] = False,
    json: JSON = False,
) -> None:
    """Evaluate a system with lm-eval or OpenCompass on local data; store and show the scores."""
    from moebench.harness.arguments import find_data_dir
    from moebench.harness.evaluate.run import evaluator
    from moebench.harness.evaluate.tasks import draw

    asks = evaluator(engine)
    folder = find_data_dir(data_dir)
    asked = draw(tasks.split(","), prompts, given["seed"], few_shot, given.get("setting"), folder)
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
    """Return the stored document of an evaluation, or run the evaluation and store it."""
    from moebench.harness import console
    from moebench.harness.arguments import require_writable
    from moebench.harness.evaluate.run import about, evaluate, evaluator
    from moebench.harness.evaluate.session import prepare_evaluated, resolve_evaluated
    from moebench.harness.keep import keep as keep_run
    from moebench.results.store import Store

    spec = resolve_evaluated(data_dir, mode, **given)
    console.say_refused([spec.system])
    require_writable(directory)
    version = evaluator(engine).version()
    session = about(prepare_evaluated(spec, data_dir, max_length), engine, version, asked)
    store = Store(directory)
    stored = None if force else store.reusable(session.run_id)
    if stored is not None:
        console.stderr().print(f"run {session.run_id} was stored; --force evaluates again")
        return stored
    with console.progress(f"{engine} asks {spec.title}") as progress:
        outcome = evaluate(session, engine, version, asked, directory, progress, keep)
    keep_run(store, outcome.document, outcome.picture)
    return outcome.document


def _show(document: dict[str, Any], store: Path) -> None:
    from moebench.harness import console
    from moebench.reports.sections.evaluations import HEADERS, lines

    console.show_run(document, store)
    console.table("what the evaluator found", HEADERS, lines([document]))
