"""DAOP's tables and figures as exhibits."""

import numpy as np

from moebench.harness.reproduce.claim import Show
from moebench.harness.reproduce.daop import experiments as e
from moebench.harness.reproduce.daop import measures as m
from moebench.harness.reproduce.daop import measures_of_routing as mr
from moebench.harness.reproduce.daop.claims_of_times import FIG_9, FIG_10, TABLE_1, TABLE_4
from moebench.harness.reproduce.evidence import Evidence, Runs
from moebench.harness.reproduce.exhibits import MODEL, Row, axis, figure, heat_rows, table, timeline
from moebench.harness.reproduce.generated_texts import routed
from moebench.harness.reproduce.read import SCORE
from moebench.harness.reproduce.timelines import decoded, spans
from moebench.results.claims import Exhibit
from moebench.results.paper_tables import daop_table_5, daop_table_6, workload_of
from moebench.substrate.analysis.statistics import popularity
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.models.catalogue import model_shape

_SPEED = axis("tokens_per_s", "speed", "tokens/s")
_NAMES = {"mixtral-8x7b": e.MODELS["D1"], "phi-3.5-moe": e.MODELS["D2"]}

#: Output lengths of Fig. 9, in tokens; inputs have 256 tokens.
LENGTHS = (128, 256, 512)


# ----------------------------------------------------------------------------- tables


def _table_1(evidence: Evidence) -> Exhibit:
    full = {"input or output": "expert input or output"}
    parts = [(full.get(name, name), paper, what) for name, paper, what in TABLE_1]
    return table(
        "daop-table-1", "Table I", "Mixtral 8x7B on an A100",
        (axis("part"), axis("ms", "time", "ms")),
        ({"part": name, "ms": round(m.component(what), 3)} for name, _, what in parts),
        ({"part": name, "ms": paper} for name, paper, _ in parts), "estimate",
        "as the cost model charges",
    )  # fmt: skip


def _table_2(evidence: Evidence) -> Exhibit:
    paper = {"c4": 90.05, "math": 90.37, "gsm8k": 91.74}
    rows = [
        {"dataset": name, "share": round(mr.similarity(name)(evidence).value, 2)} for name in paper
    ]
    return table(
        "daop-table-2", "Table II", "Similarity of expert use in prefill and decode",
        (axis("dataset", "data set"), axis("share", "cosine", "%")), rows,
        ({"dataset": name, "share": share} for name, share in paper.items()),
        note="scale model of Mixtral 8x7B",
    )  # fmt: skip


def _table_3(evidence: Evidence) -> Exhibit:
    paper = {"mixtral-8x7b": (32, 8, 2, 45.1, 46.6), "phi-3.5-moe": (32, 16, 2, 40.3, 41.7)}
    fields = ("blocks", "experts", "top_k", "expert_b", "total_b")
    rows = []
    for model in paper:
        shape = model_shape(model)
        billions = [round(n / 1e9, 1) for n in (shape.routed_params, shape.total_params)]
        counts = (shape.num_layers, shape.num_experts, shape.top_k, *billions)
        rows.append({"model": _NAMES[model], **dict(zip(fields, counts, strict=True))})
    stated = [
        {"model": _NAMES[model], **dict(zip(fields, row, strict=True))}
        for model, row in paper.items()
    ]
    return table(
        "daop-table-3", "Table III", "Models",
        (
            MODEL, axis("blocks"), axis("experts"), axis("top_k", "top-k"),
            axis("expert_b", "expert parameters", "billion"),
            axis("total_b", "parameters", "billion"),
        ),
        rows, stated,
    )  # fmt: skip


def _table_4(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(e.SPEED)
    rows = [
        {
            "model": e.MODELS[setting], "system": system,
            "tokens_per_kj": round(m.efficiency(setting, system)(runs), 2),
        }
        for setting, row in TABLE_4.items()
        for system in row
    ]  # fmt: skip
    paper = [
        {"model": e.MODELS[setting], "system": system, "tokens_per_kj": value}
        for setting, row in TABLE_4.items()
        for system, value in row.items()
    ]
    return table(
        "daop-table-4", "Table IV", "Energy efficiency, [256, 256]",
        (MODEL, axis("system"), axis("tokens_per_kj", "efficiency", "tokens/kJ")),
        rows, paper, runs.badge,
        "simulated: powers of GPU and host, without board and memory; the paper measures the box",
    )  # fmt: skip


def _table_5(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(e.FIRST_TOKEN)
    method = {"moe-ondemand": "official", "daop": "ours"}
    datasets = {
        name: workload_of("daop", name)
        for name in dict.fromkeys(row.dataset for row in daop_table_5())
    }
    measured = [name for name, workload in datasets.items() if len(runs.of(workload=workload))]
    rows = [
        {
            "model": e.MODELS[setting], "method": said,
            **{
                name: round(place.of(workload=datasets[name]).named(system).mean(SCORE), 2)
                for name in measured
            },
        }
        for setting, place in runs.by("setting").items()
        for system, said in method.items()
    ]  # fmt: skip
    stated: dict[tuple[str, str], Row] = {}
    for row in daop_table_5():
        said = "official" if row.method == "official" else "ours"
        names = {"model": _NAMES[row.model], "method": said}
        stated.setdefault((row.model, said), names)[row.dataset] = row.score
    columns = [axis(name, name, "%") for name in datasets]
    return table(
        "daop-table-5", "Table V", "Accuracy where prefill alone decides, 25 % cached",
        (MODEL, axis("method"), *columns), rows, stated.values(),
        note=f"scale models, {runs[0]['spec']['prompts']} questions each: about as good as a guess",
    )  # fmt: skip


def _table_6(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(e.WHOLE_ANSWERS)
    names = list(runs.by("workload"))
    rows = []
    for (setting, system, ratio), one in runs.groups("setting", "system", "cache_ratio").items():
        cached = 100.0 if system == "moe-ondemand" else round(100 * ratio, 1)
        row = {"model": e.MODELS[setting], "cached": cached}
        scores = {name: round(one.of(workload=name).mean(SCORE), 1) for name in names}
        rows.append({**row, **scores})
    stated: dict[tuple[str, float], Row] = {}
    columns: dict[str, str] = {}
    for score in daop_table_6():
        metric = {"rouge_1": " R1", "rouge_2": " R2"}.get(score.metric or "", "")
        ratio = 100 * (score.cache_ratio or 1)
        row = stated.setdefault(
            (score.model, ratio), {"model": _NAMES[score.model], "cached": ratio}
        )
        columns[score.dataset + metric] = "%"
        row[score.dataset + metric] = score.score
    return table(
        "daop-table-6", "Table VI", "Accuracy of whole answers by share of experts cached",
        (
            MODEL, axis("cached", "experts cached", "%"),
            *(axis(name, name, "%") for name in (*names, *columns)),
        ),
        rows, stated.values(),
        note=f"ours: generated families, scale models, {runs[0]['spec']['prompts']} questions each",
    )  # fmt: skip


# ----------------------------------------------------------------------------- figures

#: GPUs beside whose memory the models are shown: a consumer's, the paper's two, and a larger one.
_CARDS = ("rtx4090", mr.MACHINE, "a100@daop", "h200")


def _figs_1_and_2(evidence: Evidence) -> Exhibit:
    rows: list[Row] = []
    for model in mr.MODELS:
        whole = mr.weights_gb(model)
        token = whole * mr.used_share(model, model_shape(model).top_k) / 100
        parts = {"what one token uses": token, "other parameters": whole - token}
        rows += [{"name": _NAMES[model], "part": p, "gb": round(v, 1)} for p, v in parts.items()]
    for machine in _CARDS:
        gpu = load_profile(machine).gpu
        memory = round(gpu.memory.bytes / 1e9, 1)
        rows.append({"name": gpu.name, "part": "memory", "gb": memory})
    return figure(
        "daop-fig-1-2", "Fig. 1 and 2", "Parameters in bf16, and memory of GPUs", "stacked",
        (axis("name", "model or GPU"), axis("gb", "size", "GB")), rows, series="part",
        note="the paper's text has both figures' statements under \"Fig. 2\"; all tokens of a text "
        "together use nearly all parameters (claim D-13 one sequence)",
    )  # fmt: skip


def _fig_4(evidence: Evidence) -> Exhibit:
    texts = routed(evidence, mr.MIXTRAL, "c4")
    panels = {"all texts of C4": texts, "one text": texts[:1], "another text": texts[1:2]}
    rows = [
        {"panel": panel, **row}
        for panel, ones in panels.items()
        for row in heat_rows(popularity(ones, mr.EXPERTS), "layer", "expert")
    ]
    return figure(
        "daop-fig-4", "Fig. 4", "Expert activation over C4 and in single texts", "heat",
        (axis("expert"), axis("layer")), rows, colour=axis("share", "share of choices", "%"),
        facet="panel", note="scale model of Mixtral 8x7B; even use is 12.5 %",
    )  # fmt: skip


def _fig_5(evidence: Evidence) -> Exhibit:
    found = zip(mr.PREDICTED, mr.recall_by_layer(evidence), strict=True)
    rows = [
        {"dataset": name, "layer": layer, "share": round(100 * float(value), 2)}
        for name, layers in found
        for layer, value in enumerate(layers)
        if not np.isnan(value)
    ]
    return figure(
        "daop-fig-5", "Fig. 5", "Experts predicted one layer in advance", "lines",
        (axis("layer"), axis("share", "predicted", "%")), rows, series="dataset",
        note="scale model of Mixtral 8x7B; the paper's mean is 84.11 %",
    )  # fmt: skip


def _fig_8(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(e.TIMELINES)
    titles = {
        "MoE-OnDemand": "moe-ondemand", "Pre-gated MoE": "pregated-moe", "Fiddler": "fiddler",
        "DAOP": "daop",
    }  # fmt: skip
    shown = {t: decoded(evidence, runs.named(system)) for t, system in titles.items()}
    return timeline(
        "daop-fig-8", "Fig. 8", "Three layers of one decoded token", spans(shown, 15), runs.badge,
        "Mixtral 8x7B, simulated; pre-gates are an oracle",
    )  # fmt: skip


def _fig_9(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(e.SPEED)
    rows = [
        {
            "model": e.MODELS[setting], "length": f"[256, {tokens}]", "system": system,
            "tokens_per_s": round(m.tokens_per_s(one, tokens), 3),
        }
        for setting, place in runs.by("setting").items()
        for tokens in LENGTHS
        for system, one in place.by("system").items()
    ]  # fmt: skip
    paper = [
        {"model": e.MODELS[name], "length": "[256, 512]", "system": "daop", "tokens_per_s": speed}
        for name, speed in FIG_9.items()
    ]
    return figure(
        "daop-fig-9", "Fig. 9", "Speed by input and output length", "bars",
        (axis("length", "[input, output] in tokens"), _SPEED.model_copy(update={"log": True})),
        rows, runs.badge, series="system", facet="model", paper=paper, note=_from(runs),
    )  # fmt: skip


def _fig_10(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(e.BY_RATIO)
    rows = [
        {
            "model": e.MODELS[setting], "ratio": round(100 * ratio, 1), "system": system,
            "tokens_per_s": round(m.tokens_per_s(one, 256), 3),
        }
        for setting, place in runs.by("setting").items()
        for ratio, of in sorted(place.by("cache_ratio").items())
        for system, one in of.by("system").items()
    ]  # fmt: skip
    paper = [
        {"model": e.MODELS[setting], "ratio": 25.0, "system": "daop", "tokens_per_s": speed}
        for setting, speed in FIG_10.items()
    ]
    return figure(
        "daop-fig-10", "Fig. 10", "Speed by share of experts cached, [256, 256]", "lines",
        (axis("ratio", "experts cached", "%"), _SPEED), rows, runs.badge, series="system",
        facet="model", paper=paper, note=_from(runs),
    )  # fmt: skip


def _from(runs: Runs) -> str:
    return (
        f"from TTFT and TPOT of runs of {runs[0]['spec']['new_tokens']} new tokens, routing "
        f"{runs[0]['spec']['routing']}"
    )


EXHIBITS = (
    Show(_table_1), Show(_table_2), Show(_table_3), Show(_table_4, (e.SPEED,)),
    Show(_table_5, (e.FIRST_TOKEN,)), Show(_table_6, (e.WHOLE_ANSWERS,)), Show(_figs_1_and_2),
    Show(_fig_4),
    Show(_fig_5), Show(_fig_8, (e.TIMELINES,)), Show(_fig_9, (e.SPEED,)),
    Show(_fig_10, (e.BY_RATIO,)),
)  # fmt: skip
