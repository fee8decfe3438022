"""DuoServe-MoE's tables and figures as data."""

from typing import Any

from moebench.harness.reproduce.claim import Show
from moebench.harness.reproduce.duoserve import measures as m
from moebench.harness.reproduce.duoserve.claims import TABLE_2, TABLE_3
from moebench.harness.reproduce.duoserve.experiments import (
    BOTH,
    CELLS,
    DATASETS,
    SMALL,
)
from moebench.harness.reproduce.evidence import Evidence
from moebench.harness.reproduce.read import E2E, TTFT
from moebench.harness.reproduce.timelines import decoded, prefill, spans
from moebench.reports.sections.throughput import load
from moebench.results.claims import Axis, Exhibit
from moebench.substrate.models.catalogue import model_shape

Row = dict[str, Any]

_MODEL, _SYSTEM = Axis(field="model", title="model"), Axis(field="system", title="system")


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
    return Exhibit(
        id="duoserve-table-1", place="Table 1", title="Models", form="table",
        columns=(
            _MODEL, Axis(field="layers", title="layers"),
            Axis(field="active", title="active parameters", unit="billion"),
            Axis(field="total", title="parameters", unit="billion"),
        ),
        rows=tuple(rows),
        paper_rows=tuple(
            {"model": name, "layers": layers, "active": active, "total": total}
            for name, (layers, active, total) in paper.items()
        ),
        badge="counted",
    )  # fmt: skip


def _table_2(evidence: Evidence) -> Exhibit:
    runs, rows = evidence.runs(*BOTH), []
    for name, row in TABLE_2.items():
        settings = m.settings_of(name)
        ours: Row = {system: m.peak_gb(system, settings)(runs) for system in list(row)[:3]}
        ours["gpu-only"] = m.gpu_only_gb(m.MODEL_OF[name])
        rows.append({"model": name, **{system: round(gb, 2) for system, gb in ours.items()}})
    return Exhibit(
        id="duoserve-table-2", place="Table 2", title="Peak memory of the device", form="table",
        columns=(
            _MODEL, *(Axis(field=system, title=system, unit="GB") for system in TABLE_2["8x7B"])
        ),
        rows=tuple(rows),
        paper_rows=tuple({"model": name, **row} for name, row in TABLE_2.items()),
        badge="counted", note="gpu-only is counted, without a KV cache",
    )  # fmt: skip


def _table_3(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(*BOTH)
    paths = {"both": m.BOTH_RIGHT, "one": m.ONE_RIGHT}
    rows, paper = [], []
    for (name, workload), (both, one) in TABLE_3.items():
        cell = {"model": name, "dataset": DATASETS[workload]}
        of = runs.of(setting=m.settings_of(name))
        rows.append(cell | {k: round(m.hits(path, workload)(of), 2) for k, path in paths.items()})
        paper.append(cell | {"both": both, "one": one})
    return Exhibit(
        id="duoserve-table-3", place="Table 3", title="What the predictor gets right",
        form="table",
        columns=(
            _MODEL, Axis(field="dataset", title="data set"),
            Axis(field="both", title="top-2", unit="%"),
            Axis(field="one", title="at least one", unit="%"),
        ),
        rows=tuple(rows), paper_rows=tuple(paper), badge="counted",
        note="scale models; generated sums stand for Orca-Math, passages for SQuAD",
    )  # fmt: skip


def _fig_2a(evidence: Evidence) -> Exhibit:
    shares = m.matrices(evidence)["popularity"]
    rows = [
        {"layer": layer, "expert": expert, "share": round(100 * float(share), 2)}
        for layer, of in enumerate(shares)
        for expert, share in enumerate(of)
    ]
    return Exhibit(
        id="duoserve-fig-2a", place="Fig. 2 a", title="Popularity of experts", form="heat",
        x=Axis(field="expert", title="expert"), y=Axis(field="layer", title="layer"),
        colour=Axis(field="share", title="share of choices", unit="%"), rows=tuple(rows),
        badge="counted", note="scale model of Mixtral 8x7B; even use is 12.5 %",
    )  # fmt: skip


def _fig_2b(evidence: Evidence) -> Exhibit:
    first = m.matrices(evidence)["affinity"][0]
    rows = [
        {"before": before, "after": after, "share": round(100 * float(share), 2)}
        for before, of in enumerate(first)
        for after, share in enumerate(of)
    ]
    return Exhibit(
        id="duoserve-fig-2b", place="Fig. 2 b", title="Affinity of layers 0 and 1", form="heat",
        x=Axis(field="after", title="expert of layer 1"),
        y=Axis(field="before", title="expert of layer 0"),
        colour=Axis(field="share", title="likelihood", unit="%"), rows=tuple(rows),
        badge="counted", note="scale model of Mixtral 8x7B; even use is 12.5 %",
    )  # fmt: skip


def _fig_4(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(SMALL).of(setting="U2", system="duoserve")
    (spec, *_) = (
        spec
        for spec in evidence.specs(SMALL)
        if (spec.setting, spec.system, spec.workload) == ("U2", "duoserve", "passages")
    )
    panels = {"prefill": prefill(evidence, spec), "decode": decoded(evidence, runs)}
    return Exhibit(
        id="duoserve-fig-4", place="Fig. 4", title="Three layers of a prompt, and of one token",
        form="timeline", x=Axis(field="start", title="time", unit="µs"),
        y=Axis(field="lane", title=""), series="kind", facet="panel",
        rows=tuple(spans(panels, 15)), badge=runs.badge,
        note="Mixtral 8x7B on the A6000, simulated: computation, communication and prediction "
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
    return Exhibit(
        id="duoserve-fig-5", place="Fig. 5", title="TTFT and end-to-end time", form="bars",
        x=_SYSTEM, y=Axis(field="s", title="time", unit="s", log=True), series="time",
        facet="cell", rows=tuple(rows), badge=runs.badge,
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
    return Exhibit(
        id="duoserve-fig-6", place="Fig. 6", title="Distribution of decode throughput",
        form="lines", x=Axis(field="tokens_per_s", title="decode", unit="tokens/s", log=True),
        y=Axis(field="share", title="share of tokens at most as fast", unit="1"), series="system",
        facet="cell", rows=tuple(rows), badge=runs.badge,
        note="the paper's text states speed-ups alone: claim U-3",
    )  # fmt: skip


EXHIBITS = (
    Show(_table_1),
    Show(_table_2, BOTH),
    Show(_table_3, BOTH),
    Show(_fig_2a, (SMALL,)),
    Show(_fig_2b, (SMALL,)),
    Show(_fig_4, (SMALL,)),
    Show(_fig_5, BOTH),
    Show(_fig_6, BOTH),
)
