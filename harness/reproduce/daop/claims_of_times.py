"""DAOP's claims about times, speeds and energy, with bands that were fixed before measuring.

A speed or an efficiency is reproduced within a quarter of the paper's figure and has its direction
from half to twice; a gain is reproduced from half to one and a half times, has its direction from a
quarter on, and is no effect below that.  The paper states no spreads.
"""

from moebench.harness.reproduce.bands import Bands, at_least, at_most, every, half, quarter, sign
from moebench.harness.reproduce.claim import Claim, CounterExperiment
from moebench.harness.reproduce.daop import experiments as e
from moebench.harness.reproduce.daop import measures as m
from moebench.harness.reproduce.read import difference
from moebench.results.claims import Band

#: Reason of the bands of a gain.
HALF = "from half to one and a half times the paper's gain; direction: a quarter of it or more"
_OF_GAIN = (*e.OF_SPEED, e.SHIPPED)

# ----------------------------------------------------------------------------- Table I

_THERE_AND_BACK = CounterExperiment(
    "input and output, one after the other", measure=m.charged(m.ACTIVATION, times=2), reading=True
)

#: Rows of Table I: name, the paper's figure in ms, and the charged component.
TABLE_1 = (
    ("block on the CPU", 8.02, m.HOST_BLOCK),
    ("block on the GPU", 1.24, m.DEVICE_BLOCK),
    ("expert migration", 39.87, m.MIGRATION),
    ("input or output", 0.02, m.ACTIVATION),
)

_TABLE_1 = (
    *(
        Claim(
            f"D-3 {name}", "Table I", f"Mixtral on an A100: {name}", paper, "ms",
            quarter(
                paper, ".  The profile takes numbers from this table and from the authors' code"
            ),
            m.charged(what), counters=(_THERE_AND_BACK,) if what == m.ACTIVATION else (),
        )
        for name, paper, what in TABLE_1
    ),
    Claim(
        "D-3 migration over block", "§I",
        "an expert's migration over a whole block on the GPU, on an A100", 32, "×",
        Bands(Band(low=24, high=40), None,
              "within a quarter of the paper's figure; direction: a quarter of its excess over 1")
        .effect(31, 1), m.migration_over_block,
    ),
    Claim(
        "D-3 activations over weights", "§I",
        "an expert's input and output for a token over its weights, Mixtral, in ten-thousandths: "
        "approximately one", 1, "1e-4",
        Bands(Band(low=0.316, high=3.16), Band(low=0.1, high=10),
              "the nearest power of ten is one ten-thousandth; direction: an order either way"),
        m.moved_over_weights(),
        counters=(
            CounterExperiment("the input alone", measure=m.moved_over_weights(copies=1),
                              always=True, reading=True),
            CounterExperiment("activations in fp32", measure=m.moved_over_weights(value_bytes=4),
                              always=True, reading=True),
        ),
    ),
)  # fmt: skip

# ----------------------------------------------------------------------------- Fig. 9 and 10

#: DAOP's tokens/s by setting: for [256, 512], and for [256, 256] with 25 % of experts cached.
FIG_9, FIG_10 = {"D1": 4.52, "D2": 8.21}, {"D1": 3.23, "D2": 5.03}

_SPEED = (
    *(
        Claim(
            f"D-4 {e.MODELS[setting]}", "Fig. 9", f"{e.MODELS[setting]}, [256, 512], DAOP", paper,
            "tokens/s", quarter(paper),
            m.at_setting(m.speed(setting, "daop", 512), "for 512 tokens"), (e.SPEED,), e.OF_SPEED,
        )
        for setting, paper in FIG_9.items()
    ),
    Claim(
        "D-4 over Fiddler", "Fig. 9", "[256, 512], DAOP over Fiddler, mean of both models", 40.4,
        "%", half(40.4, "%", HALF),
        m.at_setting(lambda runs: m.over_fiddler(m.of_shared_ratio(runs), 512), "for 512 tokens"),
        (e.SPEED,), _OF_GAIN,
    ),
    *(
        Claim(
            f"D-5 {said}", "Fig. 9", f"Mixtral, [256, 512], {said}: less than one token/s", 1,
            "tokens/s", at_most(1, 2, "as stated; direction: less than half of DAOP's 4.52"),
            m.at_setting(m.speed("D1", system, 512), "for 512 tokens"), (e.SPEED,), e.OF_SPEED,
        )
        for said, system in (
            ("MoE-OnDemand", "moe-ondemand"), ("DeepSpeed-MII", "deepspeed-mii"),
            ("Mixtral-Offloading", "mixtral-offloading"),
        )
    ),
    Claim(
        "D-6 over Fiddler", "Fig. 10", "[256, 256], DAOP over Fiddler, mean over cache ratios",
        35.4, "%", half(35.4, "%", HALF),
        m.by_ratio(lambda runs: m.over_fiddler(runs, 256), "for 256 tokens"), (e.BY_RATIO,),
        _OF_GAIN,
    ),
    *(
        Claim(
            f"D-6 {e.MODELS[setting]} 25 %", "Fig. 10",
            f"{e.MODELS[setting]}, [256, 256], 25 % of experts cached, DAOP", paper, "tokens/s",
            quarter(paper), m.by_ratio(m.speed(setting, "daop", 256, 0.25), "for 256 tokens"),
            (e.BY_RATIO,), e.OF_SPEED,
        )
        for setting, paper in FIG_10.items()
    ),
    *(
        Claim(
            f"D-7 {said}", "Fig. 9", f"{said}: tokens/s of 512 tokens out over 128", None, "%",
            sign(3, "three percent or more are seen in a chart; direction: a quarter of that"),
            m.at_setting(
                lambda runs, system=system: m.gain_of_length(system, runs),  # type: ignore[misc]
                "TPOT is the same for both lengths",
            ),
            (e.SPEED,), (e.SHIPPED, e.LIVE),
        )
        for said, system in (("Fiddler", "fiddler"), ("DAOP", "daop"))
    ),
    Claim(
        "D-8 caching and prefetching", "abstract",
        "greatest speed-up over MoE-OnDemand and Mixtral-Offloading", 8.20, "×",
        half(8.20, "×", HALF),
        m.at_setting(
            lambda runs: m.greatest_over(("moe-ondemand", "mixtral-offloading"), runs),
            "both models, 256 and 512 tokens",
        ),
        (e.SPEED,), _OF_GAIN,
    ),
    Claim(
        "D-8 offloading", "abstract", "speed-up over Fiddler, mean over cache ratios", 1.35, "×",
        half(1.35, "×", HALF),
        m.by_ratio(lambda runs: 1 + m.over_fiddler(runs, 256) / 100, "for 256 tokens"),
        (e.BY_RATIO,), _OF_GAIN,
    ),
)  # fmt: skip

# ----------------------------------------------------------------------------- Fig. 8

_FIG_8 = (
    *(
        Claim(
            f"D-5 {said}'s copies", "Fig. 8",
            f"Mixtral, {said}: share of decode in which an expert is copied", None, "%",
            at_least(50, 25, '"severe I/O bottlenecks": half of the time; direction: a quarter'),
            m.of_timelines(m.copying(system), more), (e.TIMELINES,), e.OF_SPEED,
        )
        for said, system, more in (
            ("MoE-OnDemand", "moe-ondemand", "at the setting's cache ratio"),
            ("Pre-gated MoE", "pregated-moe", "pre-gates are an oracle"),
        )
    ),
    Claim(
        "D-4 no copies", "Fig. 8",
        "Mixtral, Fiddler and DAOP: share of decode in which an expert is copied, of the two", None,
        "%", at_most(2, 5, '"avoiding migration overhead": nearly none; direction: a twentieth'),
        m.of_timelines(lambda runs: max(m.copying(s)(runs) for s in ("fiddler", "daop")), "larger"),
        (e.TIMELINES,), e.OF_SPEED,
    ),
    Claim(
        "D-4 in parallel", "Fig. 8",
        "Mixtral: share of the host's work that the GPU does not await, DAOP's less Fiddler's",
        None, "points",
        sign(10, "ten points are seen in a chart; direction: a quarter of that"),
        m.of_timelines(
            difference(m.in_parallel("daop"), m.in_parallel("fiddler")), "of the host's busy time"
        ),
        (e.TIMELINES,), e.OF_SPEED,
    ),
)  # fmt: skip

# ----------------------------------------------------------------------------- Table IV

#: The paper's tokens per kJ by setting and system.
TABLE_4 = {
    "D1": {
        "moe-ondemand": 2.63, "deepspeed-mii": 0.59, "mixtral-offloading": 2.13,
        "fiddler": 10.06, "daop": 14.37,
    },
    "D2": {"moe-ondemand": 6.94, "fiddler": 17.15, "daop": 27.07},
}  # fmt: skip

_ENERGY = (
    *(
        Claim(
            f"D-9 {e.MODELS[setting]} {system}", "Table IV",
            f"{e.MODELS[setting]}, [256, 256], {system}", paper, "tokens/kJ", quarter(paper),
            m.at_setting(m.efficiency(setting, system), "256 tokens, simulated powers"),
            (e.SPEED,), e.OF_SPEED,
        )
        for setting, row in TABLE_4.items()
        for system, paper in row.items()
    ),
    Claim(
        "D-9 over Fiddler", "Table IV", "tokens/kJ, DAOP over Fiddler, mean of both models", 1.50,
        "×", half(1.50, "×", HALF),
        m.at_setting(m.efficiency_over_fiddler, "256 tokens, simulated powers"), (e.SPEED,),
        _OF_GAIN,
    ),
    Claim(
        "D-9 order", "Table IV", "share of other systems that use more energy a token than DAOP",
        1, "1", every("all of them; direction: half"),
        m.at_setting(m.most_efficient, "256 tokens, simulated powers"), (e.SPEED,), e.OF_SPEED,
    ),
)  # fmt: skip

CLAIMS_OF_TIMES = (*_TABLE_1, *_SPEED, *_FIG_8, *_ENERGY)
