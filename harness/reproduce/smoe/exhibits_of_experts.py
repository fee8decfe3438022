"""SMoE's figures of the time of one expert, as the cost model charges it: Fig. 3, 8 and §4.1."""

from moebench.harness.reproduce.claim import Show
from moebench.harness.reproduce.evidence import BADGES, Evidence
from moebench.harness.reproduce.exhibits import MODEL as MODEL_AXIS
from moebench.harness.reproduce.exhibits import axis, figure
from moebench.harness.reproduce.smoe.components import (
    EIGHT_CORES,
    MACHINE,
    MODEL,
    MODELS,
    charged_badge,
    expert_ns,
    load_ns,
    one_ns,
    rows_of,
)
from moebench.harness.reproduce.smoe.experiments import SETTINGS
from moebench.harness.settings import setting
from moebench.results.claims import Exhibit
from moebench.substrate.machines.profile import load_profile
from moebench.substrate.machines.protocol import Lane

#: Tokens of the prompts that are shown.
PROMPTS = (1, 8, 32, 64, 128, 256, 512, 1024)


def _fig_3(evidence: Evidence) -> Exhibit:
    sides = {"GPU": Lane.DEVICE, "CPU": Lane.HOST, "PCIe": Lane.H2D}
    rows = [
        {"model": model, "side": side, "ms": one_ns(lane, MACHINE, model) / 1e6}
        for model in MODELS
        for side, lane in sides.items()
    ]
    return figure(
        "smoe-fig-3", "Fig. 3", "An expert and one token on CPU and GPU, and its load", "bars",
        (MODEL_AXIS, axis("ms", "time", "ms", log=True)), rows,
        charged_badge(load_profile(MACHINE), Lane.HOST), series="side",
        note=f"on {MACHINE}, as charged; the paper's text states orders of magnitude alone: claims "
        "S-14; first version: Fig. 6",
    )  # fmt: skip


def _fig_8(evidence: Evidence) -> Exhibit:
    sides = {
        "GPU": (Lane.DEVICE, EIGHT_CORES), "CPU, 8 cores": (Lane.HOST, EIGHT_CORES),
        "CPU, 6 cores": (Lane.HOST, MACHINE),
    }  # fmt: skip
    rows = [
        {"side": side, "batch": batch, "ms": expert_ns(lane, batch, machine) / 1e6}
        for side, (lane, machine) in sides.items()
        for batch in (1, 2, 3, 4, 6, 8, 12, 16)
    ]
    return figure(
        "smoe-fig-8", "Fig. 8", "One expert's time by batch size", "lines",
        (axis("batch", "batch size"), axis("ms", "time", "ms", log=True)), rows,
        charged_badge(load_profile(EIGHT_CORES), Lane.HOST), series="side",
        note=f"{MODEL} on {EIGHT_CORES}, as charged; every token chooses the expert; 6 cores are "
        f"those of the first version's §6.1, {MACHINE}",
    )  # fmt: skip


def _prompts(evidence: Evidence) -> Exhibit:
    rows, badges = [], []
    for name in SETTINGS:
        model, machine = setting(name).model, setting(name).machine
        badges.append(charged_badge(load_profile(machine), Lane.HOST))
        load = load_ns(machine, model) / 1e6
        for tokens in PROMPTS:
            row = {"setting": name, "tokens": tokens}
            host = expert_ns(Lane.HOST, rows_of(tokens, model), machine, model) / 1e6
            rows += [{**row, "side": "CPU", "ms": host}, {**row, "side": "PCIe", "ms": load}]
    return figure(
        "smoe-prompts", "first version, §4.1", "One expert's time on the host, and its load",
        "lines",
        (axis("tokens", "tokens of the prompt", log=True), axis("ms", "time", "ms", log=True)),
        rows, min(badges, key=BADGES.index), series="side", facet="setting",
        note="as charged, with the mean rows of an expert; the paper's figure has no number",
    )  # fmt: skip


SHOWN = (Show(_fig_3), Show(_fig_8), Show(_prompts))
