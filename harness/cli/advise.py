"""``moebench advise``: what to run on a machine, or which system and α meet a budget."""

import json as json_
import os
import shlex
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moebench.harness.cli.options import Changed, takes
from moebench.harness.cli.parameters import (
    DATA_DIR,
    DEFAULT_STORE,
    JSON,
    PER_CORE,
    QUICK_PROMPTS,
    QUICK_TEXTS,
    QUICK_TOKENS,
    STORE,
    option,
)

if TYPE_CHECKING:
    from moebench.harness.advise.budget.choose import By, Candidate, Demand
    from moebench.harness.advise.budget.runs import Advice

#: How many commands are named.
TO_TRY = 3


@takes(
    "setting", "model", "machine", "software", "weights", "precision", "quant", "workload", "batch",
    "cache_ratio", "prompts", "new_tokens", "calibrate_texts", "seed",
    model=Changed("Model: a name, or with parts a GGUF file."),
    machine=Changed("Machine: a name, or its parts as one text, or a calibrated .yaml."),
    batch=Changed("Texts that are decoded at the same time."),
    prompts=Changed("Prompts of each run.", default=QUICK_PROMPTS, min=1),
    new_tokens=Changed(default=QUICK_TOKENS, min=2),
    calibrate_texts=Changed(default=QUICK_TEXTS, min=1),
    seed=Changed(min=0),
)  # fmt: skip
def advise(
    *,
    context: typer.Context,
    gpu: Annotated[
        str | None, option("Card: rtx-3090, rtx-3090*2, strix-halo, none [this computer's].")
    ] = None,
    cpu: Annotated[str | None, option("Processor: ryzen-5950x, xeon-6454s*2.")] = None,
    ram: Annotated[str | None, option("Memory of the host in GB or GiB.")] = None,
    memory: Annotated[str | None, option("Its modules: ddr5-5600*2.")] = None,
    bandwidth: Annotated[float | None, option("Its bandwidth in GB/s, if you measured it.")] = None,
    link: Annotated[str | None, option("Link to the card: pcie4x8.")] = None,
    copies: Annotated[
        float | None, option("Rate of copies to the card in GB/s, if you measured it.")
    ] = None,
    disk: Annotated[str | None, option("Disk: nvme4.")] = None,
    length: Annotated[
        str | None, option("Tokens that the KV cache has room for: 32k [8k].", "--context")
    ] = None,
    prompt: Annotated[
        str | None, option("Tokens of the prompt [2048, or what fills --context].")
    ] = None,
    tokens: Annotated[str | None, option("Tokens of the answer [512].")] = None,
    bits: Annotated[float | None, option("Bits per weight of the experts [the format's].")] = None,
    lossless: Annotated[
        bool, option("Leave out what changes the model's output.", "--lossless")
    ] = False,
    engines: Annotated[
        str | None, option("Engines or systems, separated by commas [those that users run].")
    ] = None,
    config: Annotated[
        str | None, option("An engine's options that are among the rows: 'llama.cpp -ncmoe 28'.")
    ] = None,
    buy: Annotated[bool, option("What the next purchase gains.", "--buy")] = False,
    html: Annotated[
        Path | None, option("File of a page to choose machine and model on, without a network.")
    ] = None,
    fresh: Annotated[
        bool, option("Compute again what is stored of this question.", "--fresh")
    ] = False,
    tpot_ms: Annotated[
        float | None, option("Budget: highest acceptable TPOT, in ms.", "--tpot-ms", min=0)
    ] = None,
    accuracy_loss: Annotated[
        float | None, option("Budget: highest acceptable loss, in the unit of --by.", min=0)
    ] = None,
    by: Annotated[
        str,
        option("Loss: kl (nats per token), agreement (% of differing tokens) or score (points)."),
    ] = "kl",
    given: dict[str, Any],
    systems: Annotated[str | None, option("Systems, separated by commas [all].")] = None,
    alphas: Annotated[
        str | None, option("Values of α to measure first, separated by commas [0 to 0.6 by 0.1].")
    ] = None,
    jobs: Annotated[
        int, option("Number of worker processes; 0 runs in this one.", min=0, show_default=PER_CORE)
    ] = os.cpu_count() or 1,
    data_dir: DATA_DIR = None,
    store: STORE = DEFAULT_STORE,
    json: JSON = False,
) -> None:
    """Say what to run on a machine, or which system and α meet a budget.

    With parts of a machine, or of this computer without them: engines and their configurations,
    best first, with 80 % intervals and exact commands.

    With --tpot-ms or --accuracy-loss: applies Eq. 5 of SMoE to every system.  Each system is
    measured on few prompts; stored cells are not run again.  Ctrl-C or SIGTERM ends the
    measurements and prints the answer of what was finished; the same command goes on.
    Exit code: 0 answered, or a system meets the budget; 1 nothing fits or meets it; 130
    interrupted.
    """
    budget = tpot_ms is not None or accuracy_loss is not None
    _only_one_question(context, budget)
    if budget:
        _budget(given, tpot_ms, accuracy_loss, by, systems, alphas, jobs, data_dir, store, json)
        return
    if html is not None:
        from moebench.harness.arguments import require_file
        from moebench.harness.cli.advise_machine import write_page

        require_file("--html", html, folder_exists=True)
        write_page(html)
        if given.get("model") is None:
            return
    from moebench.harness.arguments import listed

    _machine(
        given, store, json, gpu=gpu, cpu=cpu, ram=ram, memory=memory, bandwidth=bandwidth,
        link=link, copies=copies, disk=disk, context=length, prompt=prompt, tokens=tokens,
        bits=bits, lossless=lossless, config=config, buy=buy, fresh=fresh,
        engines=[] if engines is None else listed(engines, "--engines"),
    )  # fmt: skip


#: Options of both questions; others are of one alone.
BOTH = ("model", "machine", "quant", "batch", "store", "json", "help")
#: Options of the question about a machine.
OF_MACHINES = (
    "gpu", "cpu", "ram", "memory", "bandwidth", "link", "copies", "disk", "length", "prompt",
    "tokens", "bits", "lossless", "engines", "config", "buy", "html", "fresh",
)  # fmt: skip


def _only_one_question(context: typer.Context, budget: bool) -> None:
    """Refuse options of the other question.

    Raises UsageError: names the first such option.
    """
    from moebench.substrate.errors import UsageError

    for param in context.command.params:
        name = str(param.name)
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE" or name in BOTH:
            continue
        if budget and name in OF_MACHINES:
            raise UsageError(f"{param.opts[0]}: not with a budget; leave out one of both")
        if not budget and name not in OF_MACHINES:
            raise UsageError(
                f"{param.opts[0]}: only for a budget; give --tpot-ms MS, --accuracy-loss LOSS, or "
                "both"
            )


def _machine(given: dict[str, Any], store: Path, json: bool, **asked: Any) -> None:
    from moebench.harness import console
    from moebench.harness.advise.advice import advise as answer
    from moebench.harness.cli.advise_machine import show as show_answer
    from moebench.substrate.errors import UsageError

    model = given.get("model")
    if model is None:
        raise UsageError(
            "nothing asked: give --model NAME or a GGUF file (and --gpu, --cpu, --ram of another "
            "machine than this), or a budget: --tpot-ms MS"
        )
    found = answer(
        str(model), quant=given.get("quant"), machine=given.get("machine"),
        batch=given.get("batch", 1), store=store, told=console.say, **asked,
    )  # fmt: skip
    if json:
        console.print_json(found.document)
    else:
        show_answer(found.document, found.cached)
    raise typer.Exit(0 if any(one["fits"] != "does not fit" for one in found.answers) else 1)


def _budget(
    given: dict[str, Any], tpot_ms: float | None, accuracy_loss: float | None, by: str,
    systems: str | None, alphas: str | None, jobs: int, data_dir: Path | None, store: Path,
    json: bool,
) -> None:  # fmt: skip
    from moebench.harness import console
    from moebench.harness.advise.budget.choose import Demand, measured
    from moebench.harness.advise.budget.runs import Runs, scoring_for, systems_for
    from moebench.harness.advise.budget.runs import advise as find
    from moebench.harness.arguments import find_data_dir, listed, require_writable

    unit = _unit(by)
    prompts, new_tokens, texts = (
        given.pop(name) for name in ("prompts", "new_tokens", "calibrate_texts")
    )
    place = {**given, "scoring": scoring_for(unit, given.get("workload"))}
    place = {key: value for key, value in place.items() if value is not None}
    folder = find_data_dir(data_dir)
    named = systems_for([] if systems is None else listed(systems, "--systems"))
    console.say_refused(named)
    require_writable(store)
    length = {"prompts": _whole_batches(prompts, given.get("batch", 1))}
    if unit != "score":  # an answer that is scored is as long as its workload allows
        length["new_tokens"] = new_tokens
    demand = Demand(tpot_ms, accuracy_loss)
    with _ended_by_sigterm():
        found = find(
            Runs(place | length, texts, folder, store, jobs), named, _alphas(alphas), demand, unit,
            lambda one, ranking: console.say(measured(one, ranking, demand, unit)),
        )  # fmt: skip
    length["calibrate_texts"] = texts
    place |= {} if data_dir is None else {"data_dir": str(data_dir)}
    place |= {} if store == DEFAULT_STORE else {"store": str(store)}
    show(found, demand, unit, place, length, json)
    if found.interrupted:
        raise KeyboardInterrupt
    raise typer.Exit(0 if found.ranking.meeting else 1)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Handle SIGTERM inside the block like Ctrl-C, so that what was finished is still printed."""
    if threading.current_thread() is not threading.main_thread():  # only it may set a handler
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _unit(by: str) -> "By":
    from moebench.harness.advise.budget.choose import UNITS
    from moebench.substrate.errors import UsageError

    for unit in UNITS:
        if unit == by:
            return unit
    raise UsageError(f"--by {by}: allowed: {', '.join(UNITS)}")


def _alphas(typed: str | None) -> Sequence[float]:
    from moebench.harness.advise.budget.runs import ALPHAS
    from moebench.harness.arguments import listed
    from moebench.substrate.errors import UsageError

    if typed is None:
        return ALPHAS
    try:
        values = [float(text) for text in listed(typed, "--alphas")]
    except ValueError as error:
        raise UsageError(f"--alphas {typed}: allowed: numbers separated by commas") from error
    if not all(0 <= value <= 1 for value in values):
        raise UsageError(f"--alphas {typed}: allowed: numbers from 0 to 1")
    return values


def _whole_batches(prompts: int, batch: int) -> int:
    return -(-prompts // max(1, batch)) * max(1, batch)


# ----------------------------------------------------------------------------- showing


def show(
    found: "Advice", demand: "Demand", by: "By", place: dict[str, Any], length: dict[str, int],
    as_json: bool,
) -> None:  # fmt: skip
    """Print the ranking, the fitted curve, the advice and the next command."""
    from moebench.harness import console
    from moebench.harness.advise.budget.choose import UNITS, sentence, spread

    advice = _partial(found) + sentence(found.ranking, demand, by, not found.interrupted)
    meeting, others, _ = found.ranking
    commands = [_command(one, place) for one in meeting[:TO_TRY]]
    basis = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in length.items())
    if as_json:
        document = {
            "advice": advice, "demand": demand._asdict(), "by": by, "unit": UNITS[by],
            "meeting": [_plain(one) for one in meeting],
            "others": [
                _plain(one)
                | {"over_ms": one.too_slow_ms(demand), "over_loss": _finite(one.too_lossy(demand))}
                for one in others
            ],
            "alpha": {
                system: {
                    "measured_ms": {f"{a:g}": ms for a, ms in found.measured[system].items()},
                    "fit": None if fitted is None else _fit(fitted),
                }
                for system, fitted in found.fits.items()
            },
            "partial": found.interrupted, "missing": found.missing,
            "left_out": found.left_out, "notes": found.notes, "commands": commands,
            "basis": {**place, **length},
        }  # fmt: skip
        print(json_.dumps(document, sort_keys=True))
        return
    headers = ["system", "α", "TPOT (ms)", f"loss ({UNITS[by]})", "meets it", "badge", "run"]
    rows = [
        [
            one.system, "-" if one.alpha is None else f"{one.alpha:g}", spread(one.tpot),
            "lossless" if one.lossless else "-" if one.loss is None else spread(one.loss),
            _meets(one, demand), one.badge, one.run_id,
        ]
        for one in (*meeting, *others)
    ]  # fmt: skip
    console.table("systems", headers, rows)
    out = console.stderr()
    for system, fitted in found.fits.items():
        out.print(_fit_line(system, fitted, len(found.measured[system])), markup=False)
    for system, why in found.left_out.items():
        out.print(f"left out: {system}: {why}", markup=False)
    for note in found.notes:
        out.print(f"note: {note}", markup=False)
    out.print(
        f"a quick look: {basis}; ± is a 95 % t interval over prompts, and holds nothing of how "
        "sure the machine's numbers are; the commands below run all prompts and texts",
        markup=False,
    )
    print(advice)
    for command in commands:
        print(f"  {command}")


def _meets(one: "Candidate", demand: "Demand") -> str:
    from moebench.harness.advise.budget.choose import excess

    over = excess(one, demand)
    return f"no: {over}" if over else "yes"


def _partial(found: "Advice") -> str:
    """Return the introduction of an answer that an interruption made incomplete; "" of others."""
    if not found.interrupted:
        return ""
    missing = ", ".join(found.missing)
    lacks = f"not measured: {missing}" if missing else "the search of α had not ended"
    return f"Partial answer, interrupted; {lacks}.  The same command goes on.  "


def _fit_line(system: str, fitted: Any, points: int) -> str:
    if fitted is None:
        return f"{system}: {points} α measured; three are needed to fit T(α)"
    terms = [f"{c:+.4g} α^{power}" for power, c in enumerate(fitted.coefficients) if power]
    return (
        f"{system}: T(α) = {fitted.coefficients[0]:.4g} {' '.join(terms)} ms for α from "
        f"{fitted.low:g} to {fitted.high:g}; each of {fitted.points} points predicted from the "
        f"others: {fitted.error_ms:.3g} ms off (root mean square), {fitted.worst_ms:.3g} at most"
    ).replace("α^1", "α")


def _command(one: "Candidate", place: dict[str, Any]) -> str:
    words = ["moebench", "run", "--system", one.system]
    chosen = place if one.alpha is None else {**place, "alpha": f"{one.alpha:g}"}
    for key, value in chosen.items():
        words += [f"--{key.replace('_', '-')}", str(value)]
    return shlex.join(words)


def _plain(one: "Candidate") -> dict[str, Any]:
    loss = None if one.loss is None else one.loss._asdict()
    return {**one._asdict(), "tpot": one.tpot._asdict(), "loss": loss}


def _fit(fitted: Any) -> dict[str, Any]:
    names = ("coefficients", "low", "high", "degree", "error_ms", "worst_ms", "points")
    return {name: getattr(fitted, name) for name in names}


def _finite(value: float) -> float | None:
    return None if value == float("inf") else value
