"""Reasons why verdicts on some of DuoServe-MoE's claims are little evidence, by claim id."""

from moebench.results.claims import Tag

#: Tag and reason of each claim whose verdict is little evidence.
TAGS: dict[str, tuple[Tag, str]] = {
    "U-3 broader": (
        Tag.CANNOT_FAIL,
        "both baselines copy equally many bytes for every token, so that any "
        "wrong prediction makes DuoServe's distribution broader",
    ),
    "U-4 order": (
        Tag.CANNOT_FAIL,
        "the settings give MoESys four times the slots of the others, and DuoServe "
        "ACC's and the predictor's 300 MB",
    ),
    "U-6 memory": (
        Tag.BY_CONSTRUCTION,
        "the reserved memory is an option whose default is the paper's figure",
    ),
    "U-6 epochs 8x7B": (
        Tag.CANNOT_FAIL,
        "training ends after the paper's 20 epochs at most, and its loss still falls in the last",
    ),
    "U-7 8x7B": (Tag.SAME_ROW, "U-4 8x7B duoserve and U-4 8x7B gpu-only: their ratio"),
    "U-7 8x22B": (
        Tag.SAME_ROW,
        "U-4 8x22B duoserve and U-4 8x22B gpu-only: their ratio, which agrees because "
        "both are about half of the paper's",
    ),
}
