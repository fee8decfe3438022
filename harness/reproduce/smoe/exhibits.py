"""SMoE's figures as data: Fig. 3, 4, 6 and 8 to 18, numbered as in the second version."""

from collections.abc import Iterable
from statistics import fmean
from typing import Any

import numpy as np

from moebench.harness.reproduce.claim import Show
from moebench.harness.reproduce.evidence import Evidence, Runs
from moebench.harness.reproduce.exhibits import SETTING, Row, axis, figure, table, timeline
from moebench.harness.reproduce.read import DECODED, HOST, LINK, TPOT, TTFT
from moebench.harness.reproduce.smoe import experiments as e
from moebench.harness.reproduce.smoe import measures as m
from moebench.harness.reproduce.smoe.batches import Substitutes, substitutes
from moebench.harness.reproduce.smoe.exhibits_of_experts import SHOWN as OF_EXPERTS
from moebench.harness.reproduce.smoe.host_bandwidth import SHOWN as HOST_BANDWIDTHS
from moebench.harness.reproduce.smoe.importance import BEFORE_SUBSTITUTION, off_device
from moebench.harness.reproduce.smoe.instrumented import Watched, watch
from moebench.harness.reproduce.smoe.own_parts import FIFO_BASE, HOST_BASE, LOADED_BASE
from moebench.harness.reproduce.smoe.tables import STEP, TABLES
from moebench.harness.reproduce.smoe.thresholds import DEGREE, curve
from moebench.harness.reproduce.timelines import decoded, spans
from moebench.harness.settings import setting
from moebench.results.claims import Axis, Exhibit, Form
from moebench.substrate.models.catalogue import model_shape

_TPOT_MS = axis("ms", "TPOT", "ms")


def _figure(
    number: str, title: str, form: Form, axes: tuple[Axis, Axis], rows: Iterable[Row], badge: str,
    **more: Any,
) -> Exhibit:  # fmt: skip
    place = f"Fig. {number.split('-')[0]}"
    return figure(f"smoe-fig-{number}", place, title, form, axes, rows, badge, **more)


# ----------------------------------------------------------------------------- what gates say


def _gates(evidence: Evidence) -> list[Watched]:
    evidence.runs(e.ABLATION)
    return watch(evidence, e.ABLATION, **e.STEPS[BEFORE_SUBSTITUTION])


def _by_rank(evidence: Evidence, of: str, field: str) -> list[Row]:
    """Return exhibit rows of a figure by score rank, averaged over seeds."""
    seen, rows = _gates(evidence), []
    for name in e.SETTINGS:
        means = np.mean([getattr(one, of) for one in seen if one.setting == name], axis=0)
        model = setting(name).model
        rows += [{"model": model, "rank": i, field: float(v)} for i, v in enumerate(means, start=1)]
    return rows


_RANK = axis("rank", "rank of the gate score")


def _fig_4(evidence: Evidence) -> Exhibit:
    k = ", ".join(f"{setting(s).model} {model_shape(setting(s).model).top_k}" for s in e.SETTINGS)
    return _figure(
        "4", "A few active experts score high", "lines", (_RANK,
        axis("score", "mean score, relative to the highest", "1")),
        _by_rank(evidence, "score_by_rank", "score"), "counted", series="model",
        note=f"decoded tokens of the scale models; active experts: {k}",
    )  # fmt: skip


def _fig_6(evidence: Evidence) -> Exhibit:
    return _figure(
        "6", "Use in the next 3 iterations", "lines", (_RANK,
        axis("share", "share that is used", "1")),
        _by_rank(evidence, "reuse_by_rank", "share"), "counted", series="model",
        note="decoded tokens of the scale models",
    )  # fmt: skip


# ----------------------------------------------------------------------------- against others


def _fig_10(evidence: Evidence) -> Exhibit:
    runs, rows = evidence.runs(e.THRESHOLDS), []
    for name in e.SETTINGS:
        alphas, times = curve(runs, name)
        fit = np.polyval(np.polyfit(alphas, times, DEGREE), alphas)
        for what, values in (("TPOT", times), ("fit of degree 2", fit)):
            points = zip(alphas.tolist(), values.tolist(), strict=True)
            rows += [{"setting": name, "what": what, "alpha": a, "ms": ms} for a, ms in points]
    return _figure(
        "10", "TPOT by α", "lines", (axis("alpha", "α"), _TPOT_MS), rows, runs.badge,
        series="what", facet="setting",
    )  # fmt: skip


def _fig_11(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(e.MAIN)
    rows = [
        {"setting": f"{name}, batch {batch}", "workload": w, "system": s, "ms": each.mean(TPOT)}
        for (name, batch, w, s), each in runs.groups(
            "setting", "batch", "workload", "system"
        ).items()
    ]
    return _figure(
        "11", "TPOT of SMoE and four baselines", "bars", (axis("workload"),
        axis("ms", "TPOT", "ms", log=True)), rows, runs.badge, series="system",
        facet="setting", note="llama.cpp has no S2: XVERSE-MoE has no GGUF conversion. The paper's "
        "text states changes alone: claims S-1 and S-2",
    )  # fmt: skip


def _by_system(runs: Runs, path: str, field: str) -> list[Row]:
    return [
        {"setting": name, "system": system, field: each.mean(path)}
        for (name, system), each in runs.of(batch=1).groups("setting", "system").items()
    ]


def _fig_12(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(e.MAIN)
    counts = (
        ("complete when the gate is known", m.COMPLETE),
        ("copies that have begun count", m.BEGUN),
    )
    rows = [
        {**row, "count": said} for said, path in counts for row in _by_system(runs, path, "ratio")
    ]
    paper = {"setting": "S3", "system": "smoe", "ratio": 0.71, "count": counts[1][0]}
    return _figure(
        "12", "Expert cache ratio, batch 1", "bars", (SETTING,
        axis("ratio", "expert cache ratio", "1")), rows, runs.badge,
        series="system", facet="count", paper=[paper],
        note="the paper shows none of DeepSpeed, which keeps no experts",
    )  # fmt: skip


def _fig_13(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(e.MAIN)
    return _figure(
        "13", "TTFT, batch 1", "bars", (SETTING,
        axis("ms", "TTFT", "ms", log=True)), _by_system(runs, TTFT, "ms"),
        runs.badge, series="system", note="the paper's text states changes alone: claim S-4",
    )  # fmt: skip


# ----------------------------------------------------------------------------- own parts


#: Labels of steps that are short enough to fit below bars.
_SHORT = {HOST_BASE: "host", LOADED_BASE: "load", FIFO_BASE: "FIFO"}
_BASES = "bases: misses on the host; loaded; loaded into a cache that is first in, first out"


def _by_step(runs: Runs, path: str, field: str, steps: Iterable[str] = e.STEPS) -> list[Row]:
    return [
        {
            "setting": name, "step": _SHORT.get(step, step),
            field: place.of(set=e.STEPS[step]).mean(path),
        }
        for name, place in runs.by("setting").items()
        for step in steps
    ]  # fmt: skip


def _fig_14_tpot(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(e.ABLATION)
    return _figure(
        "14-tpot", "TPOT by part, batch 1", "bars", (STEP, _TPOT_MS), _by_step(runs, TPOT, "ms"),
        runs.badge, facet="setting", note=_BASES,
    )  # fmt: skip


def _fig_14_ratio(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(e.ABLATION)
    return _figure(
        "14-ratio", "Expert cache ratio by part, batch 1", "bars", (STEP,
        axis("ratio", "expert cache ratio", "1")),
        _by_step(runs, m.COMPLETE, "ratio"), runs.badge, facet="setting",
        note=f"complete on the device when the gate is known; {_BASES}",
    )  # fmt: skip


def _fig_15(evidence: Evidence) -> Exhibit:
    runs, rows = evidence.runs(e.ABLATION), []
    for step in (HOST_BASE, "+CE", "+CR", "+Pre"):
        seen = watch(evidence, e.ABLATION, **e.STEPS[step])
        for name in e.SETTINGS:
            ones = [one.importance for one in seen if one.setting == name]
            row = {"setting": name, "step": _SHORT.get(step, step)}
            for kind in ("top", "low"):
                share = fmean(off_device(one, kind) for one in ones)
                rows.append({**row, "experts": f"{kind}-score", "share": share})
    return _figure(
        "15", "Active experts that must be loaded or computed on the host", "bars", (STEP,
        axis("share", "share of active experts of the kind", "1")), rows,
        runs.badge, series="experts", facet="setting",
    )  # fmt: skip


def _per_token(runs: Runs, path: str) -> float:
    """Return a lane's busy time in decode, in ms per token, for runs of batch 1."""
    return sum(runs.values(path)) / sum(runs.values(DECODED))


def _lanes(runs: Runs, steps: Iterable[str], lanes: dict[str, str]) -> list[Row]:
    return [
        {"setting": name, "step": step, "time": said, "ms": _per_token(chosen, path)}
        for name, place in runs.by("setting").items()
        for step in steps
        for chosen in [place.of(set=e.STEPS[step])]
        for said, path in lanes.items()
    ]


_MS_A_TOKEN = axis("ms", "time a token", "ms")


def _fig_16(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(e.ABLATION)
    steps = ("+CR", "+Pre")
    rows = _lanes(runs, steps, {"PCIe": LINK})
    rows += [{**row, "time": "TPOT"} for row in _by_step(runs, TPOT, "ms", steps)]
    return _figure(
        "16", "PCIe time and TPOT without and with prefetching", "bars", (STEP, _MS_A_TOKEN), rows,
        runs.badge, series="time", facet="setting",
    )  # fmt: skip


def _fig_17(evidence: Evidence) -> Exhibit:
    runs, rows = evidence.runs(e.PREDICTION), []
    ways: dict[str, dict[str, str]] = {"SMoE": {}, "residual alone": e.FROM_RESIDUAL}
    for said, options in ways.items():
        for name, place in runs.of(set=options).by("setting").items():
            row, top = {"setting": name, "way": said}, m.top_share(place)
            rows.append({**row, "kind": "top-score", "share": top})
            if top < 100:
                active = m.active_share(place)
                rows.append({**row, "kind": "active, of the others", "share": active})
    paper = [
        {"setting": name, "way": "SMoE", "kind": kind, "share": share}
        for name in e.SETTINGS
        for kind, share in (("top-score", 82), ("active, of the others", 95))
    ]
    return _figure(
        "17", "What prefetched experts were", "bars", (SETTING,
        axis("share", "share of prefetched experts", "%")), rows, runs.badge,
        series="way", facet="kind", paper=paper, note="the paper's figures are means over settings",
    )  # fmt: skip


def _fig_18(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(e.ABLATION)
    return _figure(
        "18", "CPU and PCIe time without and with load/CPU scheduling", "bars", (STEP, _MS_A_TOKEN),
        _lanes(runs, ("+Pre", "+BA"), {"PCIe": LINK, "CPU": HOST}), runs.badge, series="time",
        facet="setting",
    )  # fmt: skip


def _fig_9(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(e.ABLATION).of(setting="S3", set=e.STEPS["+BA"])
    # An eviction bears its victim's layer and may be for any other layer.
    kept = [one for one in decoded(evidence, runs) if one["kind"] not in ("evict", "cancel")]
    rows = spans({"SMoE": kept}, first=14, layers=2)
    return timeline(
        "smoe-fig-9", "Fig. 9", "Two layers of one decoded token, S3", rows, runs.badge,
        "simulated; the paper's figure is a sketch without times. The GPU's lane has the "
        "prediction; router and load/CPU scheduling are the control thread's and have no lane",
    )  # fmt: skip


# ----------------------------------------------------------------------------- batches

#: What became of low-score experts off the device, by field of `Substitutes`.
_FATES = {
    "shared": "kept: another row's top-score expert",
    "by_resident": "replaced by an expert on the device",
    "by_row": "replaced by another row's top-score expert",
}


def _batches(evidence: Evidence) -> Exhibit:
    runs = evidence.runs(e.BATCHES)
    rows: list[Row] = []
    counted: dict[str, list[Substitutes]] = {}
    for (name, _), one in sorted(substitutes(evidence).items(), key=lambda item: item[0]):
        counted.setdefault(name, []).append(one)
    for name, ones in counted.items():
        fates = {
            field: fmean(100 * getattr(one, field) / one.absent for one in ones) for field in _FATES
        }
        absent = sum(one.absent for one in ones)
        rest = 100 - sum(fates.values())
        rows.append({"setting": name, "absent": absent, **fates, "rest": rest})
    return table(
        "smoe-batches", "§VI-B", "Low-score experts off the device at batch 3",
        (
            SETTING, axis("absent", "low-score experts off the device"),
            *(axis(field, said, "%") for field, said in _FATES.items()),
            axis("rest", "loaded or computed on the host", "%"),
        ),
        rows, badge="counted", note=m.conditions(runs),
    )  # fmt: skip


EXHIBITS = (
    *TABLES, HOST_BANDWIDTHS, *OF_EXPERTS, Show(_fig_9, (e.ABLATION,)),
    Show(_batches, (e.BATCHES,)),
    Show(_fig_4, (e.ABLATION,)), Show(_fig_6, (e.ABLATION,)),
    Show(_fig_10, (e.THRESHOLDS,)), Show(_fig_11, (e.MAIN,)), Show(_fig_12, (e.MAIN,)),
    Show(_fig_13, (e.MAIN,)), Show(_fig_14_tpot, (e.ABLATION,)), Show(_fig_14_ratio, (e.ABLATION,)),
    Show(_fig_15, (e.ABLATION,)), Show(_fig_16, (e.ABLATION,)), Show(_fig_17, (e.PREDICTION,)),
    Show(_fig_18, (e.ABLATION,)),
)  # fmt: skip
