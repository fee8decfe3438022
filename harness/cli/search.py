"""``moebench search``: the fastest composition of decisions on a machine."""

import json as json_
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moebench.harness.cli.options import Changed, takes
from moebench.harness.cli.parameters import DATA_DIR, DEFAULT_STORE, JSON, STORE, option

if TYPE_CHECKING:
    from moebench.harness.search.outcome import Outcome
    from moebench.harness.search.question import Question
    from moebench.harness.search.search import Result

#: Trials without ``--trials`` and ``--hours``, and as many as time allows.
TRIALS, MANY = 200, 10**9


@takes(
    "setting", "model", "machine", "software", "weights", "precision", "quant", "expert_dtype",
    "workload", "batch", "cache_ratio", "slots", "new_tokens", "device_memory_gib",
    "free_host_gb", "calibrate_texts", "routing", "seed",
    batch=Changed("Sequences decoded together."),
    routing=Changed("Source of routing [replayed, or drawn where no scale model ships]."),
    seed=Changed("Random seed of prompts and of trials.", min=0),
)  # fmt: skip
def search(
    given: dict[str, Any],
    settings: Annotated[
        str | None, option("Several settings, for each of which one rule is good: S1,S3,D1.")
    ] = None,
    one_rule: Annotated[
        bool, option("With --settings: look for one composition for all of them.", "--one-rule")
    ] = False,
    trials: Annotated[int | None, option(f"Compositions to try [{TRIALS}].", min=1)] = None,
    hours: Annotated[float | None, option("End after this time.", min=0)] = None,
    kl: Annotated[
        float | None,
        option("Largest KL divergence from the model, in nats a token [lossless].", min=0),
    ] = None,
    systems: Annotated[
        str | None,
        option("Published systems to begin with and to beat, separated by commas [all]."),
    ] = None,
    own: Annotated[str | None, option("A system of your own among them: module:Class.")] = None,
    learned: Annotated[
        bool, option("Also choose policies that train networks.", "--learned")
    ] = False,
    name: Annotated[str, option("Name of the class that is written.")] = "Found",
    out: Annotated[Path, option("File to write the composition to.", show_default=True)] = Path(
        "found.py"
    ),
    jobs: Annotated[
        int | None, option("Number of worker processes [one per core]; 0 runs in this one.", min=0)
    ] = None,
    ray: Annotated[str | None, option("Run on a Ray cluster: its address, or auto.")] = None,
    data_dir: DATA_DIR = None,
    store: STORE = DEFAULT_STORE,
    json: JSON = False,
) -> None:
    """Search for the fastest composition of decisions, beginning with the published systems.

    Trials are stored runs; a search that was interrupted goes on with the same command.  The best
    composition is compared with the best published systems on prompts, a workload and machines
    that the search has not seen, and written as a class that --system runs.

    Exit code: 0 a composition is better, 1 none is, 130 interrupted.
    """
    from moebench.harness import console
    from moebench.harness.arguments import find_data_dir, listed, require_file, require_writable
    from moebench.harness.cli.sweep import workers_on
    from moebench.harness.extras import require
    from moebench.harness.search.source import check_name

    require("optuna", "moebench search")
    check_name(name)
    require_file("--out", out)
    require_writable(store)
    folder = find_data_dir(data_dir)
    questions = _questions(given, settings, one_rule, kl, folder)

    from moebench.harness.search.search import Request, jobs_here, systems_of
    from moebench.harness.search.search import search as carried_out

    request = Request(
        questions=questions, systems=systems_of(listed(systems or "all", "--systems"), own),
        trials=trials or (TRIALS if hours is None else MANY), hours=inf if hours is None else hours,
        jobs=jobs_here(jobs), limit=kl, learned=learned, seed=given.get("seed") or 0,
    )  # fmt: skip
    with workers_on(ray, jobs, folder, store, True) as opened:
        result = carried_out(
            request, store, folder, opened(False), console.progress, console.say
        )  # fmt: skip
    found = _write(result, name, out)
    document = result.document() | {"file": found}
    _keep(document, store)
    if json:
        print(json_.dumps(document, sort_keys=True))
    else:
        _show(result, found, name)
    raise typer.Exit(0 if any(one.better for one in result.outcomes) else 1)


def _questions(
    given: Mapping[str, Any], settings: str | None, one_rule: bool, kl: float | None,
    data_dir: Path | None,
) -> "list[Question]":  # fmt: skip
    """Return the places that are asked about.

    Raises MoeBenchError: an option contradicts another, or a place cannot be.
    """
    from moebench.harness.arguments import listed
    from moebench.harness.search.question import Question
    from moebench.substrate.errors import UsageError

    given = {key: value for key, value in given.items() if key != "seed"}
    if settings is None:
        if one_rule:
            raise UsageError("--one-rule: one rule for several places; give --settings S1,S3,...")
        name = given.get("setting") or f"{given.get('model')} on {given.get('machine')}"
        return [Question(name=str(name), given=given, live=kl is not None, data_dir=data_dir)]
    if "setting" in given:
        raise UsageError("--settings and --setting: give one of them")
    names = list(dict.fromkeys(listed(settings, "--settings")))
    if len(names) > 1 and not one_rule:
        raise UsageError(
            f"--settings {settings}: a search finds one composition; give --one-rule for one that "
            "is good in all of them, or search each --setting by itself"
        )
    return [
        Question(name=one, given={**given, "setting": one}, live=kl is not None, data_dir=data_dir)
        for one in names
    ]


def _write(result: "Result", name: str, out: Path) -> str | None:
    """Write the composition that was found; return the file, or None if none is better."""
    from moebench.harness.search.source import source
    from moebench.substrate.files import write_text

    rule = result.rule()
    better = [one for one in result.outcomes if one.better]
    if rule is None or not better:
        return None
    said = [_provenance(one) for one in result.outcomes]
    places = ", ".join(one.place.question.name for one in result.outcomes)
    summary = f"Found in {result.counts['evaluated']} trials for {places}."
    write_text(out, source(name, rule.sets, "\n\n".join([summary, *said])))
    return str(out)


def _provenance(one: "Outcome") -> str:
    prompts = one.places[0]
    return (
        f"{one.place.question.name}: {prompts['found_ms']:.1f} ms a decoded token on new prompts,\n"
        f"{prompts['best']} {prompts['best_ms']:.1f} ms (simulated).\n{one.verdict}."
    )


def _keep(document: Mapping[str, Any], store: Path) -> None:
    from moebench.results.searches import FOLDER
    from moebench.substrate.files import write_text

    folder = store / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{document['search']}.json", json_.dumps(document, sort_keys=True))


# ----------------------------------------------------------------------------- showing


def _show(result: "Result", file: str | None, name: str) -> None:
    from moebench.harness import console

    counts = result.counts
    console.say(
        f"{counts['evaluated']} compositions evaluated, {counts['stopped']} of them stopped early; "
        f"{counts['refused_before']} refused before a run, {counts['refused_by_run']} by one"
    )
    for one in result.outcomes:
        place = one.place.question.name
        rows = [
            [row["name"], _ms(row.get("tpot_ms")), _kl(row), row.get("refused", "")]
            for row in one.rows
        ]
        console.table(f"{place}: validation", ["candidate", "TPOT", "KL", ""], rows)
        if one.found is None:
            console.say(f"{place}: {one.verdict}")
            continue
        console.table(
            f"{place}: where the search has not looked",
            ["place", one.found.name, "best published", "", "ratio"],
            [[row["place"], _ms(row.get("found_ms")), str(row.get("best", row.get("refused", ""))),
              _ms(row.get("best_ms")), _ratio(row)] for row in one.places],
        )  # fmt: skip
        console.table(
            f"{place}: with one decision of {one.best.name}",
            ["decision", "found", "published", "TPOT"],
            [[row["decision"], row["found"], row["published"],
              f"{row['change']:+.1%}" if "change" in row else row["refused"]]
             for row in one.ablation],
        )  # fmt: skip
        if "ratio" in one.regret:
            console.say(
                f"{place}: regret of one rule {one.regret['ratio'] - 1:.1%}: the fastest of all "
                f"trials here is {one.regret['best']}, {_ms(one.regret['best_ms'])} on new prompts"
            )
        if "agreement" in one.live:
            console.say(
                f"{place}: computed, {one.live['agreement']:.1%} of its tokens are the model's, at "
                f"{_ms(one.live['tpot_ms'])} a token"
            )
        if one.bounds.get("clairvoyant_ms"):
            console.say(
                f"{place}: bounds {one.bounds['clairvoyant_ms']:.1f} ms (clairvoyant), "
                f"{one.bounds['information_ms']:.1f} ms (once each gate is known)"
            )
        console.say(f"{place}: {one.verdict}")
        console.say(
            f"{place}: probability that it is faster on a real machine, by the error of predicted "
            f"ratios: {one.probability:.0%}"
        )
    if file is not None:
        module = Path(file).stem
        console.say(f"wrote {file}; moebench run --system {module}:{name} runs it")


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} ms"


def _kl(row: Mapping[str, Any]) -> str:
    value, interval = row.get("kl"), row.get("kl_interval")
    if value is None:
        return ""
    return f"{value:.2g}" + (f" ({interval[0]:.2g} to {interval[1]:.2g})" if interval else "")


def _ratio(row: Mapping[str, Any]) -> str:
    if "ratio" not in row:
        return ""
    return f"{row['ratio']:.3f}" + ("" if row["clear"] else " (not clear)")
