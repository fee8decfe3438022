"""FlashMoE's tables and figures as exhibits."""

from moebench.harness.reproduce.claim import Show
from moebench.harness.reproduce.evidence import Evidence, MissingEvidenceError, Runs
from moebench.harness.reproduce.exhibits import SYSTEM, axis, figure, table, timeline
from moebench.harness.reproduce.flashmoe import counts
from moebench.harness.reproduce.flashmoe.claims_of_caches import ROUTED
from moebench.harness.reproduce.flashmoe.evictions import eviction_map
from moebench.harness.reproduce.flashmoe.experiments import EVICTIONS, MODELS, SYSTEMS
from moebench.harness.reproduce.read import LOAD, TPOT, TTFT
from moebench.harness.reproduce.timelines import decoded, shifted
from moebench.results.claims import Exhibit
from moebench.substrate.machines.profile import load_profile
from moebench.systems.learn.eviction_network import LEARNING_RATE, WEIGHT_DECAY

POLICY, DECODE = axis("policy", "eviction"), axis("tokens_per_s", "decode", "tokens/s")

#: Number of tokens that Fig. 2 shows.
SHOWN_TOKENS = 40

#: Number of tokens after which an unused expert has no colour.
RECENT = 12


def table_1(evidence: Evidence) -> Exhibit:
    """Return Table 1: the hyperparameters of the eviction network."""
    (routing, *_) = counts.routings(evidence, "F1")
    network = counts.network(routing).network
    widths = [weights.shape[2] for weights in network.weights]
    here = {
        "loss": "MSE", "optimizer": "AdamW", "learning rate": f"{LEARNING_RATE:g}",
        "learning rate decay": f"{WEIGHT_DECAY:g} (weight decay)", "layers": str(len(widths)),
        "hidden size": ", ".join(map(str, widths[:-1])), "activation": "SiLU",
    }  # fmt: skip
    paper = ("MSE", "AdamW", "1e-3", "1e-2", "3", "128", "SiLU")
    return table(
        "flashmoe-table-1", "Table 1", "How the eviction network is trained",
        map(axis, ("hyperparameter", "paper", "here")),
        ({"hyperparameter": name, "paper": said, "here": ours}
         for (name, ours), said in zip(here.items(), paper, strict=True)),
        note=f"Learning stopped after {network.note['epochs']} epochs.",
    )  # fmt: skip


def table_2(evidence: Evidence) -> Exhibit:
    """Return Table 2: the desktop computer in the paper and in its profile."""
    profile = load_profile("rtx5070ti")
    disk = profile.disk
    rows = (
        ("CPU", "AMD Ryzen 5 9600X, 6 cores (printed as Ryzen 9)", profile.host.name),
        ("GPU", "NVIDIA RTX 5070 Ti, 16 GB", profile.gpu.name),
        ("link", "PCIe 5.0", profile.link.name),
        ("SSD", "SK hynix P51, 7.4 GB/s read", "none" if disk is None else disk.name),
        ("free RAM", "about 1 GB", "1 GB"),
    )
    return table(
        "flashmoe-table-2", "Table 2", "The desktop computer",
        map(axis, ("component", "paper", "profile")),
        ({"component": a, "paper": b, "profile": c} for a, b, c in rows), badge="datasheet",
        note="Simulated: no such hardware ran.",
    )  # fmt: skip


def figure_2(evidence: Evidence) -> Exhibit:
    """Return Fig. 2: the evictions of LRU and Belady in one layer of a text."""
    (routing, *_) = counts.routings(evidence, "F1")
    ids = routing.sequences(learnt=False)[0][:SHOWN_TOKENS]
    policies = {name: counts.policy(routing, name) for name in ("lru", "belady")}
    layer, slots = ids.shape[1] // 2, routing.experts * 3 // 8
    found = eviction_map(ids, layer, routing.experts, slots, policies)
    left: dict[tuple[int, int], list[str]] = {}
    for name, pairs in found.evicted.items():
        for pair in pairs:
            left.setdefault(pair, []).append(name)
    rows = [
        {
            "token": token, "expert": expert, "recent": RECENT - int(min(age, RECENT)),
            "evicted": " and ".join(who),
        }
        for token, ages in enumerate(found.age_TE)
        for expert, age in enumerate(ages)
        if (who := left.get((token, expert), [])) or age < RECENT
    ]  # fmt: skip
    return figure(
        "flashmoe-fig-2", "Fig. 2", "Evictions of LRU and Belady", "heat",
        (axis("token"), axis("expert")), rows, colour=axis("recent", "how recently routed"),
        series="evicted",
        note=f"OLMoE, layer {layer}, {slots} slots. {RECENT}: now; 0: {RECENT} tokens ago.",
    )  # fmt: skip


def figure_5(evidence: Evidence) -> Exhibit:
    """Return Fig. 5: a timeline of device, link and disk in decode."""
    runs = evidence.runs(EVICTIONS).of(setting="F1", set={"evict": "flashmoe"}, seed=0)
    spans = decoded(evidence, runs)
    if not spans:
        raise MissingEvidenceError("flashmoe-fig-5: no timeline was kept of F1")
    layers = sorted({span["layer"] for span in spans if span["layer"] >= 0})
    rows = shifted(spans, layers[len(layers) // 2 :][:2])
    return timeline(
        "flashmoe-fig-5", "Fig. 5", "Two decoder layers of one token", rows, runs.badge,
        "OLMoE, simulated. The paper: FFN 158 µs, an expert from the SSD about 3 ms.", facet=None,
    )  # fmt: skip


def figure_6(evidence: Evidence) -> Exhibit:
    """Return Fig. 6: the hit rate by cache size and policy."""
    rows = [
        {
            "model": said, "policy": name, "slots": size,
            "hits": round(sum(of[size][name] for of in known) / len(known), 4),
        }
        for setting, said in MODELS.items()
        for known in [[counts.rates(one) for one in counts.routings(evidence, setting)]]
        for size in known[0]
        for name in counts.COUNTED
    ]  # fmt: skip
    return figure(
        "flashmoe-fig-6", "Fig. 6", "Hit rate by cache size and eviction", "lines",
        (axis("slots", "experts held a layer"), axis("hits", "hit rate", "1")), rows,
        series="policy", facet="model",
        note="Routing drawn. The paper's text states ratios alone: +21 % over LRU, +51 % over LFU.",
    )  # fmt: skip


def used_experts(evidence: Evidence) -> Exhibit:
    """Return a figure of §4.2, which has none: experts used by prompt length."""
    rows = []
    for setting, said in MODELS.items():
        for tokens in ROUTED:
            found = counts.used(evidence, counts.MODEL_OF[setting], tokens)
            share = round(sum(found) / len(found), 2)
            rows.append({"model": said, "tokens": tokens, "used": share})
    return figure(
        "flashmoe-section-4-2", "§4.2", "Experts used by a prompt", "lines",
        (axis("tokens", "prompt", "tokens", log=True), axis("used", "experts used", "%")), rows,
        series="model",
        paper=({"model": "not said", "tokens": tokens, "used": share}
               for tokens, share in ROUTED.items()),
        note="Routing drawn; the paper does not say which model.",
    )  # fmt: skip


def figure_7a(evidence: Evidence) -> Exhibit:
    """Return Fig. 7 a and d: loading and prefill time by system."""
    runs = evidence.runs(SYSTEMS)
    rows = [
        {"model": MODELS[setting], "system": system, "part": part, "s": one.mean(path) / 1e3}
        for (setting, system), one in runs.groups("setting", "system").items()
        for part, path in (("loading", LOAD), ("prefill", TTFT))
    ]
    return figure(
        "flashmoe-fig-7a", "Fig. 7 a, d", "Loading and prefill", "stacked",
        (SYSTEM, axis("s", "time", "s")), rows, runs.badge, series="part", facet="model",
        note="The paper: loading 4x faster than llama.cpp, 6.8x than Fiddler and DAOP.",
    )  # fmt: skip


def figure_7b(evidence: Evidence) -> Exhibit:
    """Return Fig. 7 b and e: decode speed by eviction policy."""
    runs = evidence.runs(EVICTIONS)
    rows = [
        {"model": MODELS[setting], "policy": name, "tokens_per_s": _speed(one)}
        for setting, place in runs.by("setting").items()
        for name, one in _by_eviction(place).items()
    ]
    return figure(
        "flashmoe-fig-7b", "Fig. 7 b, e", "Decode by eviction", "bars", (POLICY, DECODE), rows,
        runs.badge, facet="model",
        note="The paper: FlashMoE over LRU +22 % (OLMoE), +7 % (Qwen3).",
    )  # fmt: skip


def figure_7c(evidence: Evidence) -> Exhibit:
    """Return Fig. 7 c and f: decode speed by system."""
    runs = evidence.runs(SYSTEMS)
    rows = [
        {"model": MODELS[setting], "system": system, "tokens_per_s": _speed(one)}
        for (setting, system), one in runs.groups("setting", "system").items()
    ]
    return figure(
        "flashmoe-fig-7c", "Fig. 7 c, f", "Decode by system", "bars", (SYSTEM, DECODE), rows,
        runs.badge, facet="model", note="The paper: up to 2.6x over existing systems.",
    )  # fmt: skip


def _speed(runs: Runs) -> float:
    return round(1e3 / runs.mean(TPOT), 4)


def _by_eviction(runs: Runs) -> dict[str, Runs]:
    names = dict.fromkeys(run["spec"]["overrides"]["evict"] for run in runs)
    return {name: runs.of(set={"evict": name}) for name in names}


EXHIBITS = (
    Show(table_1, (EVICTIONS,)), Show(table_2), Show(figure_2, (EVICTIONS,)),
    Show(figure_5, (EVICTIONS,)), Show(figure_6, (EVICTIONS,)), Show(used_experts),
    Show(figure_7a, (SYSTEMS,)), Show(figure_7b, (EVICTIONS,)), Show(figure_7c, (SYSTEMS,)),
)  # fmt: skip
