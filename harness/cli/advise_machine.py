"""Output of ``moebench advise`` on a machine: the table of answers, the commands, purchases."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from moebench.harness import console


def show(document: dict[str, Any], cached: bool) -> None:
    """Print an answer: the verdict, the rows, their commands, and what was assumed."""
    question, rows = document["question"], document["answers"]
    new = f"{question['prompt']:,} + {question['new']:,} tokens"
    title = f"{question['model']} in {question['quant']} on {question['machine']}, {new}"
    print(f"{title}: {document['verdict']}")
    if rows:
        console.table("", _HEADERS, [_cells(at, row) for at, row in enumerate(rows, 1)])
        checked = next((at for at, row in enumerate(rows, 1) if row["checked"]), None)
        if checked not in (None, 1):
            print(f"The best whose kind was compared with published rates: {checked}")
        print("Commands:")
        for at, row in enumerate(rows, 1):
            for line in row["command"]:
                print(f"  {at}  {line}")
    if document.get("buy"):
        table = [[one["what"], _ends(one["gain_tok_s"], "+"), _ends(one["prefill_gain_tok_s"], "+"),
                  f"{one['engine']}: {one['config']}"] for one in document["buy"]]  # fmt: skip
        headers = ["purchase", "decode tok/s gained", "prefill tok/s gained", "best with it"]
        console.table("what the next purchase gains, with 80 % intervals", headers, table)
    for line in _notes(document, cached):
        console.say(line)


_HEADERS = ["", "engine", "configuration", "decode tok/s (80 %)", "prefill tok/s (80 %)",
            "first token s", "request s", "device + host + disk GiB", "quality", "binds",
            "remark"]  # fmt: skip


def _cells(at: int, row: dict[str, Any]) -> list[str]:
    memory = row["memory"]
    places = " + ".join(f"{memory[name]:.1f}" for name in ("device_gib", "host_gib", "disk_gib"))
    prefill = None
    if row["prefill_tok_s"] is not None:
        names = ("prefill_tok_s", "prefill_low", "prefill_high")
        prefill = dict(zip(("value", "low", "high"), (row[name] for name in names), strict=True))
    decode = {"value": row["decode_tok_s"], "low": row["low"], "high": row["high"]}
    said = [
        "as asked" if row["forced"] else "", "tied with 1" if row["tied"] else "",
        "" if row["checked"] else "not checked", "" if row["fits"] == "fits" else row["verdict"],
    ]  # fmt: skip
    share = row["shares"].get(row["binds"])
    binds = row["binds"] + (f" ({share:.0%})" if share is not None else "")
    return [
        str(at), row["engine"], row["config"], _ends(decode), _ends(prefill),
        "–" if row["ttft_s"] is None else _number(row["ttft_s"]), _number(row["request_s"]),
        places, row["quality"], binds, "; ".join(filter(None, said)),
    ]  # fmt: skip


def _ends(rate: dict[str, float] | None, sign: str = "") -> str:
    """Return a rate with the ends of its interval."""
    if rate is None:
        return "–"
    value, low, high = (_number(rate[name]) for name in ("value", "low", "high"))
    return f"{sign if rate['value'] > 0 else ''}{value} ({low} to {high})"


def _number(value: float) -> str:
    """Return a number with three digits at least, and without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _notes(document: dict[str, Any], cached: bool) -> list[str]:
    """Return the lines on what was assumed, what was left out, and which options were read."""
    question = document["question"]
    assumed = question["assumed"]
    notes = [f"assumed, as the question does not say it: {assumed}"] if assumed else []
    notes += [f"{name}: read from {source}" for name, source in question["sources"].items()]
    said = defaultdict[str, list[str]](list)
    for row in document["answers"]:
        for text in (*row["remarks"], *row["notes"], row["version"]):
            if row["engine"] not in said[text]:
                said[text].append(row["engine"])
    every = {row["engine"] for row in document["answers"]}
    notes += [text if len(names) == len(every) > 1 else f"{', '.join(names)}: {text}"
              for text, names in said.items()]  # fmt: skip
    notes += [f"left out: {name}: {why}" for name, why in document["left_out"].items()]
    if any(not row["checked"] for row in document["answers"]):
        notes.append("not checked: too few rates of this kind of run were published; the interval "
                     "is the widest of such machines")  # fmt: skip
    if cached:
        notes.append("from a stored answer to the same question; --fresh computes it again")
    return list(dict.fromkeys(notes))


def write_page(path: Path) -> None:
    """Write the offline page of answers computed beforehand."""
    from moebench.harness.advise.grid import read_grid
    from moebench.harness.advise.page import page
    from moebench.substrate.files import write_text

    write_text(path, page(read_grid()))
    console.say(f"answers for many machines and models: {path}")
