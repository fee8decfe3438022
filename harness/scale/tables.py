"""Tables of scale models' quality and routing statistics, for a terminal and for the docs."""

from pathlib import Path
from typing import Any

import yaml

from moebench.harness import console
from moebench.substrate.models.catalogue import read_manifest, verify_target

_FIGURES = Path(__file__).parents[1] / "catalogue" / "routing_figures.yaml"
DOCS = Path(__file__).resolve().parents[2] / "docs" / "scale-models.md"
#: The policies of a cell of hit rates, in the order in which the figures' file names them.
_HIT_RATES = ("lru", "lfu", "belady")
_BEGIN, _END = "<!-- verify -->", "<!-- /verify -->"


def show(path: Path, document: dict[str, Any]) -> None:
    """Print what was measured of the model in a folder, beside real models' figures."""
    name, measured = path.name, document["measured"]
    headers = ["family", "accuracy", "standard error", "n", "chance", "margin (nats)", "unsure"]
    lines = [
        [
            *(family, _percent(a["score"]), _percent(a["stderr"]), str(a["n"])),
            *(_percent(a["chance"]), *_certainty(a)),
        ]
        for family, a in measured["accuracy"].items()
    ]
    console.table(f"{name}: accuracy at α = 0", headers, lines)
    console.table(f"{name}: held-out text", ["figure", "value"], _training(document["training"]))
    sources = list(measured["statistics"])
    lines = [
        [f["what"], *(_cell(measured["statistics"][s], f["key"]) for s in sources), f["real"]]
        for f in figures()
    ]
    console.table(f"{name}: routing", ["statistic", *sources, "real models"], lines)
    stderr = console.stderr()
    for line in document["differences"]:
        stderr.print(f"{name}: {line}", markup=False)
    if not document["compared"]:
        hint = f"record it with: moebench models verify {verify_target(path)} --write"
        stderr.print(f"{name}: the manifest holds no measurement; {hint}", markup=False)


def figures() -> list[dict[str, str]]:
    """Real models' routing figures: key, what, real."""
    entries: list[dict[str, str]] = yaml.safe_load(_FIGURES.read_text(encoding="utf-8"))
    return entries


def write_docs(docs: Path) -> None:
    """Fill the tables between the markers of ``docs/scale-models.md``, where that is at hand."""
    text = docs.read_text(encoding="utf-8") if docs.exists() else ""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if begin and end:
        docs.write_text(f"{before}{_BEGIN}\n{tables()}\n{_END}{after}", encoding="utf-8")


def tables() -> str:
    """Quality and routing of all shipped models, from the manifest, in Markdown."""
    entries = {n: e for n, e in sorted(read_manifest().items()) if e["measured"] is not None}
    if not entries:
        return "Nothing was measured yet."
    families = list(next(iter(entries.values()))["measured"]["accuracy"])
    quality = [
        [
            f"`{name}`",
            f"{entry['bytes'] / 1e6:.1f}",
            *(
                f"{_percent(a['score'])} ({_percent(a['chance'])})"
                for a in (entry["measured"]["accuracy"][f] for f in families)
            ),
            f"{entry['training'].get('held_out_loss', '-')}",
            f"{entry['training'].get('least_used_expert', '-')}",
        ]
        for name, entry in entries.items()
    ]
    headers = ["model", "MB", *families, "held-out loss", "least used expert"]
    certainty = [
        [f"`{name}`", *(" / ".join(_certainty(entry["measured"]["accuracy"][f])) for f in families)]
        for name, entry in entries.items()
    ]
    statistics = [e["measured"]["statistics"]["exercises"] for e in entries.values()]
    routing = [[f["what"], *(_cell(s, f["key"]) for s in statistics), f["real"]] for f in figures()]
    return "\n".join(
        [
            "Accuracy at α = 0 (chance in brackets):",
            "",
            *_markdown(headers, quality),
            "",
            "How sure the model is of what it writes: the median margin between the likeliest "
            "token and the next, in nats, and the share of tokens below one nat:",
            "",
            *_markdown(["model", *families], certainty),
            "",
            "Routing on held-out exercises:",
            "",
            *_markdown(["statistic", *(f"`{n}`" for n in entries), "real models"], routing),
        ]
    )


def _markdown(headers: list[str], lines: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (headers, ["---"] * len(headers), *lines)]


def _training(training: dict[str, Any]) -> list[list[str]]:
    names = ("held_out_loss", "unigram_loss", "least_used_expert", "experts_below_a_tenth")
    return [[name.replace("_", " "), str(training.get(name, "-"))] for name in names]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _certainty(accuracy: dict[str, Any]) -> tuple[str, str]:
    """A family's median margin and its share of unsure tokens."""
    unsure = accuracy.get("unsure")
    return _number(accuracy.get("margin")), "-" if unsure is None else f"{100 * unsure:.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _cell(statistics: dict[str, Any], key: str) -> str:
    """A statistic in a few characters; the key's parts are separated by dots."""
    value: Any = statistics
    for part in key.split("."):
        value = None if value is None else value.get(part)
    if isinstance(value, dict):  # hit rates by cache size, in whatever order the file has them
        sizes = sorted(value, key=int)
        return ", ".join(
            f"{n}: {'/'.join(_number(value[n][policy]) for policy in _HIT_RATES)}" for n in sizes
        )
    if not isinstance(value, list):
        return _number(value)
    if "by_layer" not in key:
        return " ".join(map(_number, value))
    known = [layer for layer in value if layer is not None]
    if not known:
        return "-"
    picked = (known[0], known[len(known) // 2], known[-1])
    mean = _number(sum(known) / len(known))
    return f"{mean} (first/middle/last {'/'.join(map(_number, picked))})"
