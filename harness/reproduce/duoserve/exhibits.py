"""DuoServe-MoE's tables and figures as exhibits."""

from moebench.harness.reproduce.claim import Show
from moebench.harness.reproduce.duoserve import measures as m
from moebench.harness.reproduce.duoserve import measures_of_predictor as mp
from moebench.harness.reproduce.duoserve.claims_of_predictor import TABLE_3
from moebench.harness.reproduce.duoserve.claims_of_times import TABLE_2
from moebench.harness.reproduce.duoserve.experiments import BOTH, CELLS, DATASETS, SMALL
from moebench.harness.reproduce.evidence import Evidence
from moebench.harness.reproduce.exhibits import MODEL, axis, figure, heat_rows, table, timeline
from moebench.harness.reproduce.read import E2E, TTFT
from moebench.harness.reproduce.timelines import decoded, prefill, spans
from moebench.reports.sections.throughput import load
from moebench.results.claims import Exhibit
from moebench.substrate.models.catalogue import model_shape


def _table_1(evidence: Evidence) -> Exhibit:
    paper = {"8x7B": (32, 12.9, 46.7), "8x22B": (56, 39.0, 141.0)}
    rows = []
    for name, model in m.MODEL_OF.items():
        shape = model_shape(model)
        idle = len(shape.moe_layers) * (shape.num_experts - shape.top_k) * shape.expert_params
        rows.append({
            "model": name, "layers": shape.num_layers,
            "active": round((shape.total_params - idle) / 1e9, 1),
            "total": round(shape.total_params / 1e9, 1),
        })  # fmt: skip
    return table(
        "duoserve-table-1", "Table 1", "Models",
        (
            MODEL, axis("layers"), axis("active", "active parameters", "billion"),
            axis("total", "parameters", "billion"),
        ),
        rows,
        ({"model": name, "layers": layers, "active": active, "total": total}
         for name, (layers, active, total) in paper.items()),
    )  # fmt: skip


def _table_2(evidence: Evidence) -> Exhibit:
    runs, rows = evidence.runs(*BOTH), []
    for name, row in TABLE_2.items():
        settings = m.settings_of(name)
        ours = {system: m.peak_gb(system, settings)(runs) for system in list(row)[:3]}
        ours["gpu-only"] = m.gpu_only_gb(m.MODEL_OF[name])
        rows.append({"model": name, **{system: round(gb, 2) for system, gb in ours.items()}})
    return table(
        "duoserve-table-2", "Table 2", "Peak memory of the device",
        (MODEL, *(axis(system, system, "GB") for system in TABLE_2["8x7B"])), rows,
        ({"model": name, **row} for name, row in TABLE_2.items()),
        note="gpu-only is counted, without a KV cache",
    )  # fmt: skip


def _table_3(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(*BOTH)
    paths = {"both": mp.BOTH_RIGHT, "one": mp.ONE_RIGHT}
    rows, paper = [], []
    for (name, workload), (both, one) in TABLE_3.items():
        cell = {"model": name, "dataset": DATASETS[workload]}
        of = runs.of(setting=m.settings_of(name))
        rows.append(cell | {k: round(mp.hits(path, workload)(of), 2) for k, path in paths.items()})
        paper.append(cell | {"both": both, "one": one})
    return table(
        "duoserve-table-3", "Table 3", "What the predictor gets right",
        (
            MODEL, axis("dataset", "data set"), axis("both", "top-2", "%"),
            axis("one", "at least one", "%"),
        ),
        rows, paper,
        note="scale models; generated sums stand for Orca-Math, passages for SQuAD",
    )  # fmt: skip


_EVEN = "scale model of Mixtral 8x7B; even use is 12.5 %"


def _fig_2a(evidence: Evidence) -> Exhibit:
    rows = heat_rows(mp.matrices(evidence)["popularity"], "layer", "expert")
    return figure(
        "duoserve-fig-2a", "Fig. 2 a", "Popularity of experts", "heat",
        (axis("expert"), axis("layer")), rows, colour=axis("share", "share of choices", "%"),
        note=_EVEN,
    )  # fmt: skip


def _fig_2b(evidence: Evidence) -> Exhibit:
    rows = heat_rows(mp.matrices(evidence)["affinity"][0], "before", "after")
    return figure(
        "duoserve-fig-2b", "Fig. 2 b", "Affinity of layers 0 and 1", "heat",
        (axis("after", "expert of layer 1"), axis("before", "expert of layer 0")), rows,
        colour=axis("share", "likelihood", "%"), note=_EVEN,
    )  # fmt: skip


def _fig_4(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(SMALL).of(setting="U2", system="duoserve")
    (spec, *_) = (
        spec
        for spec in evidence.specs(SMALL)
        if (spec.setting, spec.system, spec.workload) == ("U2", "duoserve", "passages")
    )
    panels = {"prefill": prefill(evidence, spec), "decode": decoded(evidence, runs)}
    return timeline(
        "duoserve-fig-4", "Fig. 4", "Three layers of a prompt, and of one token",
        spans(panels, 15), runs.badge,
        "Mixtral 8x7B on the A6000, simulated: computation, communication and prediction "
        "streams are lanes",
    )  # fmt: skip


def _fig_5(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(*BOTH)
    rows = [
        {
            "cell": f"{model}, {card}, {DATASETS[workload]}", "system": system, "time": said,
            "s": round(one.mean(path) / 1e3, 4),
        }
        for setting, (model, card) in CELLS.items()
        for workload, place in runs.of(setting=setting).by("workload").items()
        for system, one in place.by("system").items()
        for said, path in (("TTFT", TTFT), ("end-to-end", E2E))
    ]  # fmt: skip
    return figure(
        "duoserve-fig-5", "Fig. 5", "TTFT and end-to-end time", "bars",
        (axis("system"), axis("s", "time", "s", log=True)), rows, runs.badge, series="time",
        facet="cell",
        note=f"{runs[0]['spec']['new_tokens']} new tokens; the paper's are not stated. Its text "
        "has speed-ups alone: claims U-1 and U-2",
    )  # fmt: skip


def _fig_6(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(*BOTH)
    curves = load(evidence.scratch, runs)
    rows = []
    for run in runs:
        spec = run["spec"]
        if spec["seed"] == runs[0]["spec"]["seed"] and run["run_id"] in curves:
            model, card = CELLS[spec["setting"]]
            cell = f"{model}, {card}, {DATASETS[spec['workload']]}"
            rows += [
                {"cell": cell, "system": spec["system"], "tokens_per_s": round(p.tokens_per_s, 4),
                 "share": p.share}
                for p in curves[run["run_id"]]
            ]  # fmt: skip
    return figure(
        "duoserve-fig-6", "Fig. 6", "Distribution of decode throughput", "lines",
        (axis("tokens_per_s", "decode", "tokens/s", log=True),
         axis("share", "share of tokens at most as fast", "1")),
        rows, runs.badge, series="system", facet="cell",
        note="the paper's text states speed-ups alone: claim U-3",
    )  # fmt: skip


EXHIBITS = (
    Show(_table_1), Show(_table_2, BOTH), Show(_table_3, BOTH), Show(_fig_2a, (SMALL,)),
    Show(_fig_2b, (SMALL,)), Show(_fig_4, (SMALL,)), Show(_fig_5, BOTH), Show(_fig_6, BOTH),
)  # fmt: skip
