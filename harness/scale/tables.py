"""Tables of scale models' quality and routing statistics, for a terminal and for the docs."""

from pathlib import Path
from typing import Any

from moebench.harness import console
from moebench.harness.checkout import checkout
from moebench.harness.scale.verify import judged
from moebench.substrate.analysis.statistics import CACHE_SIZES, LAGS, USED_AFTER
from moebench.substrate.analysis.targets import JUDGEMENTS, value_at
from moebench.substrate.models.catalogue import read_manifest, verify_target

_CHECKOUT = checkout()
#: The page with these tables; None where there is no checkout.
DOCS = None if _CHECKOUT is None else _CHECKOUT / "docs" / "scale-models.md"
_BEGIN, _END = "<!-- verify -->", "<!-- /verify -->"

#: Labels of the statistics that tables show, by their dotted path in a summary.
STATISTICS = {
    **{f"used.{tokens}": f"experts used in the first {tokens} tokens" for tokens in USED_AFTER},
    **{f"lag_overlap.{lag}": f"overlap with the token {lag} before" for lag in LAGS},
    "random_overlap": "overlap of random choices (k/E)",
    "lag_overlap_by_layer": "overlap with the token before, by layer",
    **{
        f"hit_rates.{size}.{policy}": f"hits, {size.replace('_', ' ')} of the experts held: {name}"
        for size in CACHE_SIZES
        for policy, name in (("lru", "LRU"), ("lfu", "LFU"), ("belady", "Belady"))
    },
    "popularity_within.gini": "popularity in a text, Gini",
    "popularity_within.max_over_mean": "most used expert of a text over the mean",
    "popularity.gini": "popularity over all texts, Gini",
    "popularity.entropy": "popularity over all texts, normalised entropy",
    "popularity.max_over_mean": "most used expert over the mean",
    "popularity.min_over_mean": "least used expert over the mean, mean of layers",
    "least_used_expert": "least used expert over the mean, worst layer",
    "sequence_similarity": "similarity of two texts (cosine)",
    "prefill_decode_similarity": "prefill/decode similarity (cosine)",
    "window_similarity": "similarity of successive windows of 15 decoded tokens (cosine)",
    "prediction.gate": "next layer predicted, next gate on this layer's state",
    "prediction.normed": "next layer predicted, next gate on what this layer's gate reads",
    "prediction.layer": "next layer predicted, shared experts and next attention included",
    "prediction_by_layer.gate": "next gate on this layer's state, by layer",
    "recall_from_affinity": "next layer from affinity, recall at k",
    "recall_from_popularity": "next layer from popularity, recall at k",
    "weight_by_rank.1": "share of the weight that the best expert gets",
    "score_skew": "gate score by rank, relative to rank 1",
    "low_score_experts": "active experts that SMoE may replace, at α = 0.1, 0.35, 0.6",
    "low_score_weight": "their share of the active experts' scores",
    "reuse_by_rank": "reused within 3 tokens, by rank",
}


def show(path: Path, document: dict[str, Any]) -> None:
    """Print measured accuracy and routing of the scale model in a folder next to its targets."""
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
    statistics, targets = measured["statistics"], document["targets"]
    headers = ["statistic", *(part for source in statistics for part in (source, "target"))]
    lines = [
        [
            what,
            *(p for s in statistics for p in (_cell(statistics[s], key), _said(targets[s], key))),
        ]
        for key, what in STATISTICS.items()
    ]
    console.table(f"{name}: routing", headers, lines)
    for source, found in targets.items():
        if found:
            print(f"{name}, {source}: {counts(found)}")
    for line in document["differences"]:
        console.say(f"{name}: {line}")
    if not document["compared"]:
        hint = f"record it with: moebench models verify {verify_target(path)} --write"
        console.say(f"{name}: the manifest holds no measurement; {hint}")


def counts(found: dict[str, dict[str, Any]]) -> str:
    """Return the count of each judgement: ``20 in range, 2 near, 1 off of 23 with a target``."""
    given = [one["judgement"] for one in found.values()]
    said = ", ".join(f"{given.count(judgement)} {judgement}" for judgement in JUDGEMENTS)
    return f"{said} of {len(given)} with a target"


def write_docs(docs: Path | None) -> None:
    """Write the tables between the markers of ``docs/scale-models.md``, if that file exists."""
    if docs is None or not docs.exists():
        return
    text = docs.read_text(encoding="utf-8")
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if begin and end:
        docs.write_text(f"{before}{_BEGIN}\n{tables()}\n{_END}{after}", encoding="utf-8")


def tables() -> str:
    """Return Markdown tables of the shipped scale models' quality and routing."""
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
    statistics = {n: e["measured"]["statistics"]["exercises"] for n, e in entries.items()}
    found = {name: judged(name, summary) for name, summary in statistics.items()}
    targeted = [key for key in STATISTICS if any(key in by_key for by_key in found.values())]
    names = [f"`{name}`" for name in entries]
    beside = [
        [
            STATISTICS[key],
            *(f"{_cell(s, key)} {_said(found[n], key)}" for n, s in statistics.items()),
        ]
        for key in targeted
    ]
    beside.append(["**all**", *(counts(by_key) for by_key in found.values())])
    alone = [
        [what, *(_cell(summary, key) for summary in statistics.values())]
        for key, what in STATISTICS.items()
        if key not in targeted
    ]
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
            "Routing on held-out exercises, beside the range of real models:",
            "",
            *_markdown(["statistic", *names], beside),
            "",
            "Statistics without a target:",
            "",
            *_markdown(["statistic", *names], alone),
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
    """Return texts for an exercise family's median margin (nats) and share of unsure tokens."""
    unsure = accuracy.get("unsure")
    return _number(accuracy.get("margin")), "-" if unsure is None else f"{100 * unsure:.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _cell(summary: dict[str, Any], key: str) -> str:
    """Return a table cell's text for one statistic."""
    value = value_at(summary, key)
    if not isinstance(value, list):
        return _number(value)
    if "by_layer" not in key:
        return " ".join(map(_number, value))
    known = [layer for layer in value if layer is not None]
    if not known:
        return "-"
    picked = (known[0], known[len(known) // 2], known[-1])
    return f"first/middle/last {'/'.join(map(_number, picked))}"


def _said(found: dict[str, dict[str, Any]], key: str) -> str:
    """Return a statistic's target range and judgement as text, or "-" if it has no target."""
    one = found.get(key)
    return f"({_number(one['low'])}-{_number(one['high'])}) {one['judgement']}" if one else "-"
