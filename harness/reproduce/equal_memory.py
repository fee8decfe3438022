"""Decode times of all papers' systems in every paper's setting, with the same device memory.

Each paper compares its system in its own settings.  Here every system runs in all of them, fills
the same device memory, and decodes the same prompts at batch 1.  DuoServe-MoE's settings limit the
device to two expert slots, which no other system can use: there all have the whole card.
"""

from collections.abc import Iterator
from typing import Any

from moebench.harness.reproduce.claim import Show
from moebench.harness.reproduce.evidence import Evidence, Experiment, Runs
from moebench.harness.reproduce.exhibits import MODEL, SETTING, SYSTEM, Row, axis, table
from moebench.harness.reproduce.read import TPOT
from moebench.harness.settings import setting
from moebench.results import claims
from moebench.results.claims import Exhibit
from moebench.results.document import is_lossless, system_of

#: Few texts to learn from: this comparison is not about what systems learn.
_LEARNING: dict[str, Any] = {"calibrate_texts": 8}

#: The papers' systems, and the baselines that they measured.
SYSTEMS: list[Any] = [
    "smoe", "daop", "fiddler", "hybrimoe", "ktransformers", "llamacpp", "moe-ondemand",
    "mixtral-offloading", "acc", "deepspeed", {"system": "moe-infinity", **_LEARNING},
    {"system": "duoserve", **_LEARNING}, {"system": "flashmoe", **_LEARNING},
]  # fmt: skip

#: All systems replay what the models choose: one that substitutes experts follows the same text.
_TEXTS = {"workload": "passages", "routing": "replayed"}

#: Settings whose memory all systems share, and those whose card they share.
OF_SETTING = ("S1", "S2", "S3", "D1", "D2", "F1", "F2")
OF_CARD = ("U1", "U2", "U3", "U4")


def _experiment(name: str, places: dict[str, list[Any]]) -> Experiment:
    return Experiment(
        f"equal memory, {name}",
        {
            "common": {**_TEXTS, "prompts": 2, "new_tokens": 24},
            "zip": places,
            "product": {"system": SYSTEMS},
        },
        quick={"common": {"prompts": 1, "new_tokens": 12}},
    )


def _places() -> dict[str, list[Any]]:
    rows = [setting(name) for name in OF_CARD]
    return {
        name: [getattr(row, name) for row in rows] for name in ("model", "machine", "precision")
    }


SETTINGS = _experiment("settings", {"setting": [*OF_SETTING]})
CARDS = _experiment("whole cards", _places())


def _made(evidence: Evidence) -> Exhibit:
    found = [evidence.present(experiment) for experiment in (SETTINGS, CARDS)]
    rows = [row for runs in found for row in _rows(runs)]
    some = next(run for runs in found for run in runs)["spec"]
    return table(
        claims.EQUAL_MEMORY, "", "TPOT of all systems in every setting, with equal device memory",
        (
            SETTING, MODEL, axis("machine"), axis("memory_gb", "device memory", "GB"), SYSTEM,
            axis("tpot_ms", "TPOT", "ms"), axis("lossless"),
        ),
        rows, badge=min((runs.badge for runs in found), key=("estimate", "datasheet").index),
        note=f"batch 1, {some['prompts']} prompts of {some['new_tokens']} new tokens, "
        f"{some['software']} software; systems that learn saw 8 texts; U1 to U4 have the whole "
        "card, not the paper's two slots; a system that a setting cannot run has no row",
    )  # fmt: skip


def _rows(runs: Runs) -> Iterator[Row]:
    """Yield a row for each run; its memory is the largest that a system of the place filled."""
    of_card = {(s.model, s.machine): s.name for s in map(setting, OF_CARD)}
    for place in runs.groups("setting", "model", "machine").values():
        memory_gb = max(place.values("metrics.peak_device_bytes")) / 1e9
        for run in place:
            spec = run["spec"]
            yield {
                "setting": spec["setting"] or of_card[spec["model"], spec["machine"]],
                "model": spec["model"], "machine": spec["machine"],
                "memory_gb": round(memory_gb, 1), "system": system_of(spec),
                "tpot_ms": round(Runs([run]).mean(TPOT), 2), "lossless": is_lossless(run),
            }  # fmt: skip


#: The table, which stands on the front page.
EQUAL_MEMORY = Show(_made, (SETTINGS, CARDS))
