"""Explanations of the differences from DAOP's claims, written after measuring.

The numbers behind them are in counter-experiments, which are measured together with the claims.
"""

from moebench.harness.reproduce.claim import Headline

_TEXTS = (
    "Prompts of GSM8K and MATH have about 70 tokens here, those of C4 256: shares of a short text "
    "are uneven by chance, which lowers a cosine. A recorded text of the real model is within the "
    "band. What is left of the difference is not known."
)
_ENERGY = (
    "By its speed and tokens per kJ the paper's box draws about 315 W with DAOP on Mixtral. The "
    "simulated one has powers of GPU and host alone, and copies cost none: board, memory, and a "
    "host that waits or copies are missing. So all use less here, those that copy most of all. "
    "Neither the link, nor the software, nor the routing explains it."
)

#: Explanations by the leading words of a claim's id.
EXPLANATIONS = {
    "D-1 MATH": _TEXTS,
    "D-1 GSM8K": _TEXTS,
    "D-1 average": _TEXTS,
    "D-3 block on the CPU": (
        "Two experts at 5 ms each, as the same authors' code states of that host, are more than "
        "the table's whole block: the profile follows the code."
    ),
    "D-3 input or output": (
        'One way alone. Both ways together are within the band: the row is headed "Input / '
        "Output\". The profile's handoff, which is charged beside, is taken from this figure."
    ),
    "D-6 Phi-3.5-MoE 25 %": (
        "At 46.9 % Phi is within the band, at 25 % it is faster than in the paper. A host that "
        "reaches less than 9 % of its peak in prefill is within the band: the authors' scheduler "
        "counts with 3 %, the profile with 70 %."
    ),
    "D-9": _ENERGY,
    "D-9 over Fiddler": (
        "What both draw without working is larger in the paper's box than in the profile (claims "
        "above), so that a faster system saves more of it there."
    ),
    "D-13 one sequence": (
        "27.4 % is the share of one token: two of eight experts and the rest. The tokens of a "
        "sequence choose differently and together use nearly all experts, on the scale model and "
        "in recorded texts of the real one."
    ),
    "D-11 Mixtral 8x7B exception": (
        "With --quick, DAOP changes one decoded token in 70 of generated sums at 25 %, and no "
        "answer. They are short; GSM8K's are chains of a hundred tokens and more. "
        "The scale model cannot answer GSM8K; of the words that it writes there DAOP changes fewer "
        "than on TriviaQA, so that nothing here makes mathematics the exception."
    ),
    "D-12": (
        "The scale model writes on after questions that it cannot answer; its windows are more "
        "alike than a real model's may be. Recordings of other models disagree about the sign, and "
        "each is one text or two of a kind. Mixtral was recorded on neither set."
    ),
}

#: Claims of the front page, with the cause of a difference in one sentence.
HEADLINES: dict[str, Headline] = {
    "D-8 caching and prefetching": Headline("greatest speed-up over caching and prefetching"),
    "D-8 offloading": Headline("speed-up over Fiddler, mean over cache ratios"),
    "D-4 Mixtral 8x7B": Headline("Mixtral 8x7B, speed with 46.9 % of experts cached"),
    "D-9 over Fiddler": Headline(
        "energy efficiency over Fiddler",
        "The paper's box draws more without working than the simulated GPU and host, so that a "
        "faster system saves more energy there.",
    ),
    "D-11 Mixtral 8x7B 25 %": Headline(
        "change of scores with 25 % of experts cached",
        "Controls that degrade the scale model lose nothing on the same questions, so that a "
        "loss could not be seen; the paper's data sets need the real weights.",
    ),
}
