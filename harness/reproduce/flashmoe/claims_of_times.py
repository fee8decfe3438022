"""FlashMoE's claims of speed, of loading and of what decisions cost: F-2 to F-4, F-6, F-8, F-9.

Bands were written before measuring.  One rule for gains: within half of the paper's figure either
way is reproduced, more or less of the same sign is its direction.  The paper gives no spreads.
"""

from collections.abc import Callable
from typing import Any

from moebench.harness.reproduce.claim import Claim, CounterExperiment
from moebench.harness.reproduce.evidence import Evidence, Experiment, Runs
from moebench.harness.reproduce.flashmoe import counts, times
from moebench.harness.reproduce.flashmoe.experiments import (
    EVICTIONS,
    HEURISTICS,
    IN_MEMORY,
    LEAN,
    MODELS,
    MORE_TEXTS,
    OTHERS,
    RECORDED,
    SYSTEMS,
)
from moebench.results.claims import Band, Measured

Measure = Callable[[Evidence], Measured]

HALF = "within half of the paper's figure, which has no spread; direction: any gain"


def gain(
    name: str, place: str, statement: str, paper: float, measure: Measure, *needs: Experiment,
    **more: Any,
) -> Claim:  # fmt: skip
    """A claim of a gain in percent, or of how many times something is faster."""
    zero = 0.0 if more.get("unit", "%") == "%" else 1.0
    size = paper - zero
    of: dict[str, Any] = {
        "unit": "%", "reproduced": Band(low=zero + size / 2, high=zero + 1.5 * size),
        "direction": Band(low=zero), "why": HALF,
    }  # fmt: skip
    return Claim(
        id=name, place=place, statement=statement, paper=paper, measure=measure, needs=needs,
        **(of | more),
    )  # fmt: skip


# ----------------------------------------------------------------------------- F-2 to F-4

SPEED = (
    gain(
        "F-2 OLMoE", "Fig. 7 b", "OLMoE: tokens/s over LRU", 22,
        times.faster_than("F1", "lru"), EVICTIONS, counters=(RECORDED, LEAN),
    ),
    gain(
        "F-2 Qwen3", "Fig. 7 e", "Qwen3: tokens/s over LRU", 7,
        times.faster_than("F2", "lru"), EVICTIONS, counters=(MORE_TEXTS,),
    ),
    *(
        Claim(
            id=f"F-2 {MODELS[setting]} LRU",
            place="§4.4",
            statement=f"{MODELS[setting]}: LRU is the best heuristic: tokens/s over the best other",
            paper=None,
            unit="×",
            reproduced=Band(low=1),
            direction=Band(low=0.97),
            why="as fast as the best of LFU, LIFO and FIFO; direction: within 3 % of it",
            measure=times.best_of(setting, "lru", HEURISTICS),
            needs=(EVICTIONS,),
            counters=(RECORDED,) if setting == "F1" else (),
        )
        for setting in MODELS
    ),
)  # fmt: skip


def start(name: str, statement: str, paper: float, figure: times.Figure) -> Claim:
    """Start-up, the mean of both models."""
    return gain(
        f"F-3 {name}", "§4.2, Fig. 7 a, d", statement, paper,
        lambda evidence: times.over(figure, evidence, "mean of OLMoE and Qwen3"), SYSTEMS,
        unit="×", why="within half of the paper's gain; direction: faster", counters=(LEAN,),
    )  # fmt: skip


DRAM = ("fiddler", "daop")

START = (
    start("load llama.cpp", "loading, llama.cpp over FlashMoE", 4,
          times.sooner(("llamacpp",), times.LOAD)),
    start("load others", "loading, Fiddler and DAOP over FlashMoE", 6.8,
          times.sooner(DRAM, times.LOAD)),
    start("prefill llama.cpp", "loading and prefill, llama.cpp over FlashMoE", 2.5,
          times.sooner(("llamacpp",), times.LOAD, times.TTFT)),
    start("prefill others", "loading and prefill, Fiddler and DAOP over FlashMoE", 4.1,
          times.sooner(DRAM, times.LOAD, times.TTFT)),
)  # fmt: skip

AGAINST = (
    gain(
        "F-4 greatest", "abstract, Fig. 7 c, f",
        "greatest speed-up in tokens/s over llama.cpp, Fiddler and DAOP", 2.6,
        lambda evidence: times.over(
            lambda runs: max(times.speedups(runs)), evidence, "the greatest of both models"
        ),
        SYSTEMS, unit="×", why="within half of the paper's gain; direction: faster than one",
        counters=(LEAN, IN_MEMORY),
    ),
    Claim(
        id="F-4 order",
        place="Fig. 7 c, f",
        statement="share of models and systems (llama.cpp, Fiddler, DAOP) that decode slower",
        paper=1,
        unit="1",
        reproduced=Band(low=1),
        direction=Band(low=0.5),
        why="faster than every one; direction: than half of them",
        measure=lambda evidence: times.over(_faster_share, evidence, "both models"),
        needs=(SYSTEMS,),
        counters=(LEAN, IN_MEMORY),
    ),
)  # fmt: skip


def _faster_share(runs: Runs) -> float:
    return sum(one > 1 for one in times.speedups(runs)) / (2 * len(OTHERS))


# ----------------------------------------------------------------------------- F-6

COMPONENTS = (
    *(
        Claim(
            id=f"F-6 {MODELS[setting]} loading",
            place="§3.1, Fig. 5",
            statement=f"{MODELS[setting]}: share of decode that waits for experts",
            paper=70,
            unit="%",
            reproduced=Band(low=70),
            direction=Band(low=50),
            why='"over 70 %"; direction: more than half',
            measure=times.waiting(setting),
            needs=(EVICTIONS,),
            counters=(LEAN,),
        )
        for setting in MODELS
    ),
    Claim(
        id="F-6 FFN",
        place="§3.1, Fig. 5",
        statement="time of one expert's computation",
        paper=158,
        unit="µs",
        reproduced=Band(low=126, high=190),
        direction=Band(low=79, high=316),
        why="a fifth either way; direction: half to twice.  The profile knows the paper's figure",
        measure=times.charged("FFN, per operation"),
    ),
    Claim(
        id="F-6 read",
        place="§3.1, Fig. 5",
        statement="time to load an expert from the SSD",
        paper=3,
        unit="ms",
        reproduced=Band(low=2.4, high=3.6),
        direction=Band(low=1.5, high=6),
        why="a fifth either way; direction: half to twice.  The profile knows the paper's figure",
        measure=times.charged("expert, from the SSD"),
    ),
)  # fmt: skip

# ----------------------------------------------------------------------------- F-8, F-9


def _kilobytes(evidence: Evidence) -> Measured:
    (routing, *_) = counts.routings(evidence, "F1")
    size = counts.network(routing).network.bytes_per_layer / 1024
    return Measured.of([size], "counted", "KiB of fp32, 64 experts")


DECISIONS = (
    Claim(
        id="F-8 size",
        place="§3.2, Table 1",
        statement="OLMoE: size of the eviction network of a layer",
        paper=113,
        unit="KB",
        reproduced=Band(low=107, high=119),
        direction=Band(low=56, high=226),
        why="a twentieth either way; the width of the second hidden layer was read off this figure",
        measure=_kilobytes,
        needs=(EVICTIONS,),
    ),
    Claim(
        id="F-8 time",
        place="§3.1",
        statement="the network's time hides behind a load of 3 ms",
        paper=3000,
        unit="µs",
        reproduced=Band(high=1000),
        direction=Band(high=3000),
        why="hidden with room; direction: just hidden",
        measure=times.network_us,
        needs=(EVICTIONS,),
    ),
    Claim(
        id="F-9 search",
        place="§4.4",
        statement="a search over all placements of 64 experts, for one layer",
        paper=None,
        unit="s",
        reproduced=Band(low=1),
        direction=Band(low=0.003),
        why="impractical: a second a layer; direction: more than the load of an expert",
        measure=times.search_s,
    ),
    Claim(
        id="F-9 Algorithm 1",
        place="§4.4",
        statement="DAOP's decision with 128 experts, all 48 layers of a prompt",
        paper=None,
        unit="ms",
        reproduced=Band(low=1000),
        direction=Band(low=145),
        why="impractical: a second a prompt; direction: more than one load a layer",
        measure=times.swaps_ms,
        counters=(
            CounterExperiment(
                "with the reads of the experts that it swaps in, 3 ms each",
                measure=times.swaps_and_reads_ms,
            ),
        ),
    ),
)

CLAIMS = (*SPEED, *START, *AGAINST, *COMPONENTS, *DECISIONS)
