"""``moebench advise``: finds the system and α that meet a budget of time or accuracy."""

import json as json_
import os
import shlex
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moebench.harness.cli.options import Changed, takes
from moebench.harness.cli.parameters import (
    DATA_DIR,
    DEFAULT_STORE,
    JSON,
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
    "setting", "model", "machine", "software", "weights", "precision", "workload", "batch",
    "cache_ratio", "prompts", "new_tokens", "calibrate_texts", "seed",
    prompts=Changed("Prompts of each run.", default=QUICK_PROMPTS, min=1),
    new_tokens=Changed(default=QUICK_TOKENS, min=2),
    calibrate_texts=Changed(default=QUICK_TEXTS, min=1),
    seed=Changed(min=0),
)  # fmt: skip
def advise(
    *,
    tpot_ms: Annotated[
        float | None, option("Highest acceptable TPOT, in ms.", "--tpot-ms", min=0)
    ] = None,
    accuracy_loss: Annotated[
        float | None, option("Highest acceptable loss, in the unit of --by.", min=0)
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
        int, option("Number of worker processes [one per core]; 0 runs in this one.", min=0)
    ] = os.cpu_count() or 1,
    data_dir: DATA_DIR = None,
    store: STORE = DEFAULT_STORE,
    json: JSON = False,
) -> None:
    """Find the system and the α that meet a budget of time or accuracy.

    Applies Eq. 5 of SMoE to every system.  Each system is measured on few prompts; stored cells
    are not run again.  Ctrl-C or SIGTERM ends the measurements and prints the answer of what was
    finished; the same command goes on.
    Exit code: 0 a system meets the budget, 1 none does, 130 interrupted.
    """
    from moebench.harness import console
    from moebench.harness.advise.budget.choose import Demand, measured
    from moebench.harness.advise.budget.runs import Runs, scoring_for, systems_for
    from moebench.harness.advise.budget.runs import advise as find
    from moebench.harness.arguments import find_data_dir, require_writable
    from moebench.substrate.errors import UsageError

    if tpot_ms is None and accuracy_loss is None:
        raise UsageError("nothing to meet: give --tpot-ms MS, --accuracy-loss LOSS, or both")
    unit = _unit(by)
    prompts, new_tokens, texts = (
        given.pop(name) for name in ("prompts", "new_tokens", "calibrate_texts")
    )
    place = {**given, "scoring": scoring_for(unit, given.get("workload"))}
    place = {key: value for key, value in place.items() if value is not None}
    folder = find_data_dir(data_dir)
    named = systems_for([] if systems is None else _listed("--systems", systems))
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


def _listed(option: str, typed: str) -> list[str]:
    from moebench.substrate.errors import UsageError

    values = [value.strip() for value in typed.split(",")]
    if not all(values):
        raise UsageError(f"{option} {typed!r}: allowed: values separated by single commas")
    return values


def _alphas(typed: str | None) -> Sequence[float]:
    from moebench.harness.advise.budget.runs import ALPHAS
    from moebench.substrate.errors import UsageError

    if typed is None:
        return ALPHAS
    try:
        values = [float(text) for text in _listed("--alphas", typed)]
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
