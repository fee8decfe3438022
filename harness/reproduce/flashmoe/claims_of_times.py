"""FlashMoE's claims F-2 to F-4, F-6, F-8 and F-9 about speed, loading and the cost of decisions.

Bands were fixed before measuring.  A gain is reproduced within half of the paper's figure either
way, has no effect with less than a quarter of it, and otherwise has its direction.  The paper
states no spreads.
"""

from moebench.harness.reproduce.bands import Bands, at_least, at_most, every, half, sign
from moebench.harness.reproduce.claim import LEAN, Claim, CounterExperiment
from moebench.harness.reproduce.evidence import Evidence, Runs
from moebench.harness.reproduce.flashmoe import counts, times
from moebench.harness.reproduce.flashmoe import experiments as e
from moebench.harness.reproduce.read import LOAD, TPOT, TTFT, measured
from moebench.results.claims import Band, Measured, Tag


def gain(paper: float) -> Bands:
    """Return the bands of a gain in percent."""
    return half(
        paper, "%", "within half of the paper's figure, which has no spread; direction: a gain"
    )


#: Counter-experiments of what the network gains, by setting: OLMoE alone has recordings.
COUNTERS = {"F1": (e.RECORDED, e.MASKED), "F2": (e.MASKED,)}

# ----------------------------------------------------------------------------- F-2 to F-4

SPEED = (
    Claim("F-2 OLMoE", "Fig. 7 b", "OLMoE: tokens/s over LRU", 22, "%", gain(22),
          times.faster_than("F1", "lru"), (e.EVICTIONS,), (*COUNTERS["F1"], LEAN)),
    Claim("F-2 Qwen3", "Fig. 7 e", "Qwen3: tokens/s over LRU", 7, "%", gain(7),
          times.faster_than("F2", "lru"), (e.EVICTIONS,), COUNTERS["F2"]),
    *(
        Claim(
            f"F-2 {e.MODELS[setting]} order", "§4.4, Fig. 7 b, e",
            f"{e.MODELS[setting]}: share of the other policies with which decode is slower", 1, "1",
            every("the highest throughput; direction: higher than half of the others'"),
            times.of_setting(setting, times.slower_share), (e.EVICTIONS,), COUNTERS[setting],
        )
        for setting in e.MODELS
    ),
    *(
        Claim(
            f"F-2 {e.MODELS[setting]} LRU", "§4.4",
            f"{e.MODELS[setting]}: LRU is the best heuristic: tokens/s over the best other", None,
            "×",
            sign(0.03, "3 % faster than the best of LFU, LIFO and FIFO, the least that is seen in "
                 "the paper's chart; direction: faster", none=1),
            times.of_setting(setting, lambda runs: times.best_of(runs, "lru", e.HEURISTICS)),
            (e.EVICTIONS,),
            (e.RECORDED,) if setting == "F1" else (),
        )
        for setting in e.MODELS
    ),
)  # fmt: skip


def start(name: str, statement: str, paper: float, others: tuple[str, ...], *paths: str) -> Claim:
    """Return a claim of start-up time, averaged over both models."""
    return Claim(
        f"F-3 {name}", "§4.2, Fig. 7 a, d", statement, paper, "×",
        half(paper, "×", "within half of the paper's gain; direction: faster"),
        measured(times.sooner(others, *paths), e.SYSTEMS, said="mean of OLMoE and Qwen3"),
        (e.SYSTEMS,), (LEAN,),
    )  # fmt: skip


DRAM = ("fiddler", "daop")

START = (
    start("load llama.cpp", "loading, llama.cpp over FlashMoE", 4, ("llamacpp",), LOAD),
    start("load others", "loading, Fiddler and DAOP over FlashMoE", 6.8, DRAM, LOAD),
    start("prefill llama.cpp", "loading and prefill, llama.cpp over FlashMoE", 2.5, ("llamacpp",),
          LOAD, TTFT),
    start("prefill others", "loading and prefill, Fiddler and DAOP over FlashMoE", 4.1, DRAM,
          LOAD, TTFT),
)  # fmt: skip


def _faster_share(runs: Runs) -> float:
    return sum(one > 1 for one in times.speedups(runs, TPOT)) / (2 * len(e.OTHERS))


AGAINST = (
    Claim(
        "F-4 greatest", "abstract, Fig. 7 c, f",
        "greatest speed-up in tokens/s over llama.cpp, Fiddler and DAOP", 2.6, "×",
        half(2.6, "×", "within half of the paper's gain; direction: faster than one"),
        measured(lambda runs: max(times.speedups(runs, TPOT)), e.SYSTEMS,
                 said="the greatest of both models"),
        (e.SYSTEMS,), (LEAN, e.IN_MEMORY, e.ONE_READ),
    ),
    Claim(
        "F-4 order", "Fig. 7 c, f",
        "share of models and systems (llama.cpp, Fiddler, DAOP) that decode slower", 1, "1",
        every("faster than every one; direction: than half of them"),
        measured(_faster_share, e.SYSTEMS, said="both models"), (e.SYSTEMS,),
        (LEAN, e.IN_MEMORY, e.ONE_READ),
    ),
)  # fmt: skip

# ----------------------------------------------------------------------------- F-6

_KNOWN = "a fifth either way; direction: half to twice.  The profile knows the paper's figure"

COMPONENTS = (
    *(
        Claim(
            f"F-6 {e.MODELS[setting]} loading", "§3.1, Fig. 5",
            f"{e.MODELS[setting]}: share of decode that waits for experts", 70, "%",
            at_least(70, 50, '"over 70 %"; direction: more than half'),
            measured(times.loading_share, e.EVICTIONS, setting=setting), (e.EVICTIONS,), (LEAN,),
        )
        for setting in e.MODELS
    ),
    Claim(
        "F-6 FFN", "§3.1, Fig. 5", "time of one expert's computation", 158, "µs",
        Bands(Band(low=126, high=190), Band(low=79, high=316), _KNOWN),
        times.charged("FFN, per operation"),
    ).tagged(Tag.BY_CONSTRUCTION, "the profile's rates were chosen with this figure known"),
    Claim(
        "F-6 read", "§3.1, Fig. 5", "time to load an expert from the SSD", 3, "ms",
        Bands(Band(low=2.4, high=3.6), Band(low=1.5, high=6), _KNOWN),
        times.charged("expert, from the SSD"),
    ).tagged(Tag.BY_CONSTRUCTION, "the profile's disk was chosen with this figure known"),
)  # fmt: skip

# ----------------------------------------------------------------------------- F-8, F-9


def _kilobytes(evidence: Evidence) -> Measured:
    (routing, *_) = counts.routings(evidence, "F1")
    size = counts.network(routing).network.bytes_per_layer / 1024
    return Measured.of([size], "counted", "KiB of fp32, 64 experts")


DECISIONS = (
    Claim(
        "F-8 size", "§3.2, Table 1", "OLMoE: size of the eviction network of a layer", 113, "KB",
        Bands(Band(low=107, high=119), Band(low=56, high=226),
              "a twentieth either way; the width of the second hidden layer was read off this "
              "figure"),
        _kilobytes, (e.EVICTIONS,),
    ).tagged(Tag.BY_CONSTRUCTION, "the second hidden layer's width was read off this figure"),
    Claim(
        "F-8 time", "§3.1", "the network's time hides behind a load of 3 ms", 3000, "µs",
        at_most(1000, 3000, "hidden with room; direction: just hidden"),
        times.network_us, (e.EVICTIONS,), timed_here=True,
    ),
    Claim(
        "F-9 search", "§4.4", "a search over all placements of 64 experts, for one layer", None,
        "s", at_least(1, 0.003,
                      "impractical: a second a layer; direction: more than the load of an expert"),
        times.search_s, timed_here=True,
    ),
    Claim(
        "F-9 placements", "§4.4",
        "OLMoE: time to weigh all placements of a layer's 64 experts in 24 slots, one a clock "
        "cycle of the paper's CPU", None, "s",
        at_least(1, 0.003, "impractical: a second a layer; direction: more than the load of an "
                           "expert"),
        times.placements_s,
    ).tagged(Tag.CANNOT_FAIL, "arithmetic on the numbers of experts: no run decides it"),
    Claim(
        "F-9 Algorithm 1", "§4.4", "DAOP's decision with 128 experts, all 48 layers of a prompt",
        None, "ms",
        at_least(1000, 145,
                 "impractical: a second a prompt; direction: more than one load a layer"),
        times.swaps_ms, timed_here=True,
        counters=(
            CounterExperiment(
                "with the reads of the experts that it swaps in, 3 ms each",
                measure=times.swaps_and_reads_ms,
            ),
        ),
    ),
)  # fmt: skip

CLAIMS = (*SPEED, *START, *AGAINST, *COMPONENTS, *DECISIONS)
