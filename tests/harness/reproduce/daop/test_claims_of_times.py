"""The claims of this module are those of the results that ship; figures of runs made by hand."""

from typing import Any

import pytest

from moebench.harness.reproduce.daop.claims_of_times import CLAIMS_OF_TIMES
from moebench.harness.reproduce.daop.experiments import BY_RATIO, SPEED, TIMELINES
from moebench.harness.reproduce.evidence import Evidence
from tests.harness.reproduce.given import by_experiment
from tests.harness.reproduce.shipped import check
from tests.harness.reproduce.test_daop import run

KNOWN = {claim.id: claim for claim in CLAIMS_OF_TIMES}


def test_claims_are_those_that_ship() -> None:
    check("daop", CLAIMS_OF_TIMES)


def timed(setting: str, system: str, tpot: float, first: int = 1, **of: Any) -> Any:
    """Return a run whose first token takes as long as some others, and that draws some watts."""
    watts, decoded = of.pop("watts", 100), 96
    made = run(setting, system, first * tpot, tpot, **of)
    made["spec"] |= {"new_tokens": decoded, "routing": "drawn"}
    joules = watts * (first + decoded) * tpot / 1e3
    energy = {"parts_j": {"gpu, idle": joules}, "reason": None}
    made["metrics"] = {"decoded_tokens": decoded, "energy": energy, **made["metrics"]}
    return made


#: Runs of 5, 4, 0.8, 0.625 and 0.25 tokens/s on Mixtral.  On Phi DAOP's first token takes as long
#: as 129 others: 4, 5.33 and 6.4 tokens/s for 128, 256 and 512 tokens; others have 5 and 2.
SPEEDS = [
    timed("D1", "daop", 200), timed("D1", "fiddler", 250), timed("D1", "moe-ondemand", 1250),
    timed("D1", "mixtral-offloading", 1600, ratio=0.2),
    timed("D1", "deepspeed-mii", 4000, ratio=0.1),
    timed("D2", "daop", 125, 129), timed("D2", "fiddler", 200, watts=80),
    timed("D2", "moe-ondemand", 500),
]  # fmt: skip

#: DAOP is 1.25, 1.25, 1.6 and 1.28 times as fast as Fiddler.
RATIOS = [
    timed(setting, system, tpot, ratio=ratio)
    for setting, ratio, ours, theirs in (
        ("D1", 0.25, 400, 500), ("D1", 0.5, 200, 250), ("D2", 0.25, 250, 400), ("D2", 0.5, 125, 160)
    )
    for system, tpot in (("daop", ours), ("fiddler", theirs))
]  # fmt: skip


def shown(system: str, link: float, host: float = 1, waited: float = 0) -> Any:
    """Return a run of ten tokens of 100 ms, with busy times of link and host."""
    decode = {"lanes": {"h2d": link, "host": host}, "stall_ms": {"host": waited}}
    made = run("D1", system, metrics={"decoded_tokens": 10, "decode": decode})
    made["spec"] |= {"new_tokens": 64, "routing": "drawn"}
    return made


SHOWN = [shown("moe-ondemand", 600), shown("pregated-moe", 400),
         shown("fiddler", 10, 400, 300), shown("daop", 30, 500, 100)]  # fmt: skip

OF_512, OF_256 = "for 512 tokens", "for 256 tokens"
POWERS = "256 tokens, simulated powers"

FIGURES: dict[str, tuple[float, str]] = {
    "D-4 Mixtral 8x7B": (5, OF_512), "D-4 Phi-3.5-MoE": (6.4, OF_512),
    "D-4 over Fiddler": (100 * ((5 / 4 + 6.4 / 5) / 2 - 1), OF_512),
    "D-5 MoE-OnDemand": (0.8, OF_512), "D-5 DeepSpeed-MII": (0.25, OF_512),
    "D-5 Mixtral-Offloading": (0.625, OF_512),
    "D-6 over Fiddler": (34.5, OF_256), "D-6 Mixtral 8x7B 25 %": (2.5, OF_256),
    "D-6 Phi-3.5-MoE 25 %": (4, OF_256),
    "D-7 Fiddler": (0, "TPOT is the same for both lengths"),
    "D-7 DAOP": (100 * ((1 + 6.4 / 4) / 2 - 1), "TPOT is the same for both lengths"),
    "D-8 caching and prefetching": (5 / 0.625, "both models, 256 and 512 tokens"),
    "D-8 offloading": (1.345, OF_256),
    "D-5 MoE-OnDemand's copies": (60, "at the setting's cache ratio"),
    "D-5 Pre-gated MoE's copies": (40, "pre-gates are an oracle"),
    "D-4 no copies": (3, "larger"),
    "D-4 in parallel": (80 - 25, "of the host's busy time"),
    # At 100 W, 5 tokens/s are 50 tokens/kJ; on Phi DAOP takes 48 s for 256 tokens, Fiddler 80 W.
    "D-9 Mixtral 8x7B daop": (50, POWERS), "D-9 Mixtral 8x7B fiddler": (40, POWERS),
    "D-9 Mixtral 8x7B moe-ondemand": (8, POWERS),
    "D-9 Mixtral 8x7B deepspeed-mii": (2.5, POWERS),
    "D-9 Mixtral 8x7B mixtral-offloading": (6.25, POWERS),
    "D-9 Phi-3.5-MoE daop": (256 / 4.8, POWERS), "D-9 Phi-3.5-MoE fiddler": (62.5, POWERS),
    "D-9 Phi-3.5-MoE moe-ondemand": (20, POWERS),
    "D-9 over Fiddler": ((50 / 40 + 256 / 4.8 / 62.5) / 2, POWERS),
    "D-9 order": (5 / 6, POWERS),
}  # fmt: skip


def test_figures_of_speed_and_energy_by_hand(
    evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_experiment(monkeypatch, {SPEED.name: SPEEDS, BY_RATIO.name: RATIOS, TIMELINES.name: SHOWN})
    assert {name for name in KNOWN if not name.startswith("D-3 ")} == FIGURES.keys()
    for name, (figure, said) in FIGURES.items():
        measure = KNOWN[name].measure
        assert measure is not None
        found = measure(evidence)
        assert found.samples == pytest.approx((figure,), rel=1e-5, abs=1e-9), name
        (needed,) = KNOWN[name].needs
        tokens = 64 if needed is TIMELINES else 96
        assert found.conditions == f"{said}; 1 prompts, {tokens} tokens decoded, drawn routing"
