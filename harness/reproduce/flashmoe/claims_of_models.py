"""FlashMoE's figures about models and about preparation: non-expert weights, traces, training.

Bands were fixed before measuring.
"""

from collections.abc import Callable

from moebench.harness.reproduce.bands import at_least, at_most, near
from moebench.harness.reproduce.claim import Claim, CounterExperiment
from moebench.harness.reproduce.evidence import Evidence
from moebench.harness.reproduce.flashmoe import counts, times
from moebench.harness.reproduce.flashmoe import experiments as e
from moebench.results.claims import Band, Measured, Tag
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.models.shape import ModelShape


def of_the_experts(
    setting: str, params: Callable[[ModelShape], int], said: str
) -> Callable[[Evidence], Measured]:
    """Return a function that measures some parameters over those of all experts, in percent."""

    def measure(evidence: Evidence) -> Measured:
        shape = model_shape(counts.MODEL_OF[setting])
        share = 100 * params(shape) / shape.routed_params
        return Measured.of([share], "counted", f"exact: {said}, over the weights of all experts")

    return measure


def listed_params(shape: ModelShape) -> int:
    """Return the number of parameters of attention, norms and gates, which §2.1 names."""
    return shape.common_params - shape.embedding_params - shape.own_head_params


LISTED = "attention, norms and gates, which the paper names; no embeddings, no output layer"

NON_EXPERTS = tuple(
    Claim(
        f"F-10 {said} non-experts", "§2.1", f"{said}: non-expert weights over expert weights", 6,
        "%", near(6, 2, Band(low=1, high=15), '"around 5~7 %", and one more point either way; '
                                              'direction: "much smaller"'),
        of_the_experts(setting, lambda shape: shape.common_params, "all weights but the experts'"),
        counters=(
            CounterExperiment(
                LISTED, measure=of_the_experts(setting, listed_params, LISTED), always=True,
                reading=True,
            ),
        ),
    )
    for setting, said in e.MODELS.items()
)  # fmt: skip

PREPARATION = (
    Claim(
        "F-11 features", "§3.2", "OLMoE: time to build the features over the time to train", None,
        "1", at_least(1, 0.5, '"dominates": longer than the training; direction: half as long'),
        times.features_over_training, (e.EVICTIONS,), timed_here=True,
    ),
    Claim(
        "F-11 epochs", "§4.1", "OLMoE: most epochs of a network until it stops early", 200, "1",
        at_most(199, 200, "200 with early stopping: it stops before; direction: never sooner"),
        times.epochs, (e.EVICTIONS,),
    ).tagged(Tag.CANNOT_FAIL, "training stops after the paper's 200 epochs at most"),
    Claim(
        "F-11 traces", "§3.2", "OLMoE: time to extract the routing of 512 samples", 20, "min",
        not_measurable="a time of an A100 and of the authors' own code in batches of 32; how many "
        "tokens of a sample it reads and how many it writes is not said",
    ),
    Claim(
        "F-11 pipeline", "§3.2", "OLMoE: time of the whole preparation, with training", 120, "min",
        not_measurable="mostly the time of the authors' own feature construction, on a computer "
        "that is not named; here features of 512 drawn texts and the training of all layers take "
        "about a minute of one core",
    ),
)  # fmt: skip

#: What Eq. 1 is given.
PEAK = "a run's peak device memory"

CACHE_SIZES = tuple(
    Claim(
        f"F-12 {said} Eq. 1", "Eq. 1",
        f"{said}: slots of a layer by Eq. 1 for a run's peak memory, over the run's own", 1, "×",
        near(1, 0.1, Band(low=0.5, high=2), '"approximated": within a tenth; direction: from half '
                                            "to twice"),
        times.of_setting(setting, times.slots_by_equation_1, PEAK), (e.EVICTIONS,),
        (
            CounterExperiment(
                "the memory without what the profile reserves (context and workspace)",
                measure=times.of_setting(setting, times.slots_without_reserve, PEAK), always=True,
                reading=True,
            ),
        ),
    )
    for setting, said in e.MODELS.items()
)  # fmt: skip

CLAIMS = (*NON_EXPERTS, *PREPARATION, *CACHE_SIZES)
