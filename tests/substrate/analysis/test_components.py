"""The table of components: charges computed by hand, and a reason for each one that is off."""

import pytest
from pydantic import ValidationError

from moebench.substrate.analysis.components import (
    TOLERANCE,
    Component,
    Operation,
    compare,
    components,
    documents,
)
from moebench.substrate.machines.protocol import Lane, OpKind

ROWS = components()

#: Bytes of one expert in bf16: three matrices of two bytes a value.
MIXTRAL, PHI, QWEN, OLMOE = (
    6 * 4096 * 14336, 6 * 4096 * 6400, 6 * 3584 * 2560, 6 * 2048 * 1024
)  # fmt: skip
MIXTRAL_ATTENTION = 2 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 4096)


def charged(what: str, model: str, published: float) -> float:
    """Return the charge of one row of the catalogue."""
    (row,) = (
        c for c in ROWS
        if c.what.startswith(what) and c.model == model and c.published[0] == published
    )  # fmt: skip
    return compare(row).charged


@pytest.mark.parametrize(
    ("what", "model", "published", "by_hand"),
    [
        # 2.5 µs a copy and the link's GB/s; 20 µs a host expert and the host's GB/s
        ("expert, host to device", "mixtral-8x7b", 39.87, 0.0025 + MIXTRAL / 8.84e6),
        ("expert, host to device", "mixtral-8x7b", 210, 0.0025 + MIXTRAL / 5.24e6),
        ("expert, host to device", "phi-3.5-moe", 30, 0.0025 + PHI / 5.24e6),
        ("expert, host to device, one", "qwen2-57b-a14b", 2, 0.0025 + QWEN / 26e6),
        ("expert on the host", "mixtral-8x7b", 8.5, 0.02 + MIXTRAL / 43e6),
        ("expert on the host", "mixtral-8x7b", 5, 0.02 + MIXTRAL / 67e6),
        ("expert, from the SSD", "olmoe-1b-7b", 3, 0.05 + OLMOE / 4.5e6),
        ("expert on the host / its load", "qwen2-57b-a14b", 0.333,
         (0.02 + QWEN / 27e6) / (0.0025 + QWEN / 26e6)),
        # attention's weights and 384 keys and values, two experts, each handed over
        ("transformer block on the host", "mixtral-8x7b", 8.02,
         0.06 + (MIXTRAL_ATTENTION + 384 * 2 * 1024 * 2 + 2 * MIXTRAL) / 67e6),
        ("submit a copy", "qwen2-57b-a14b", 0.2, 0.006),
        # seven layers of three launches, 8 µs each
        ("predictor", "mixtral-8x7b", 0.6, 7 * 3 * 0.008),
        # 1000 matrices of 32 x 8 cells in fp32, and as many biases
        ("match with 1000", "mixtral-8x7b", 21, 4 * 1000 * 257 / 85e3),
        # 42 µs and 11 launches of 8 µs, more than the device's 22 µs
        ("FFN", "olmoe-1b-7b", 158, 130),
        # fp32, weights and biases of 128-128-64-64
        ("eviction network", "olmoe-1b-7b", 113,
         4 * (128 * 128 + 128 + 128 * 64 + 64 + 64 * 64 + 64) / 1e3),
        ("an expert's bytes, as copied", "qwen2-57b-a14b", 55.05, QWEN / 1e6),
    ],
)  # fmt: skip
def test_component_charges_match_hand_computation(
    what: str, model: str, published: float, by_hand: float
) -> None:
    assert charged(what, model, published) == pytest.approx(by_hand, rel=1e-3)


def test_a_block_on_the_device_is_launched_in_eager_software() -> None:
    """1.0 ms a layer and 0.13 ms an expert; the last expert may wait for its own weights."""
    got = charged("transformer block on the device", "mixtral-8x7b", 1.24)
    launches = 1.0 + 2 * 0.13
    experts = 2 * MIXTRAL / (2039 * 0.85e6)
    assert launches < got < launches + experts


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.what}: {row.source}")
def test_a_row_agrees_or_says_why_not(row: Component) -> None:
    found = compare(row)
    assert found.agrees == (row.why is None)
    assert found.ratio > 0


def test_documents_hold_the_charge_beside_the_row() -> None:
    for row, document in zip(ROWS, documents(), strict=True):
        assert document["what"] == row.what
        assert document["published"] == list(row.published)
        assert (document["charged"], document["agrees"]) == (
            compare(row).charged, row.why is None
        )  # fmt: skip


def test_published_components_cover_all_papers() -> None:
    assert len(ROWS) >= 25
    assert {row.source.split()[0].rstrip("'s") for row in ROWS} == {
        "DAOP", "SMoE", "DuoServe", "FlashMoE", "MoE-Infinity"
    }  # fmt: skip
    assert sum(compare(row).agrees for row in ROWS) > len(ROWS) / 2


LOAD = {"op": "load"}
BASE = {
    "what": "a load", "source": "nowhere", "published": [2.0], "unit": "ms", "machine": "a6000",
    "model": "qwen2-57b-a14b", "ops": [LOAD],
}  # fmt: skip


@pytest.mark.parametrize(
    ("published", "ratio"),
    [([2.0], 1.06), ([1.0, 2.0], 1.06), ([2.0, 3.0], 1.0), ([4.24, 5.0], 0.5)],
)
def test_a_range_is_compared_by_its_nearer_end(published: list[float], ratio: float) -> None:
    found = compare(Component.model_validate({**BASE, "published": published}))
    assert found.ratio == pytest.approx(ratio, rel=1e-3)
    assert found.agrees == (abs(ratio - 1) <= TOLERANCE)


def test_operations_follow_one_another_and_control_is_apart() -> None:
    """Two loads of 2.12 ms, each submitted in 6 µs: the second waits for the first."""
    two = {**BASE, "ops": [LOAD, LOAD]}
    times = {
        measure: compare(Component.model_validate({**two, "measure": measure})).charged
        for measure in ("lanes", "elapsed", "control")
    }
    load = 0.0025 + QWEN / 26e6
    assert times["lanes"] == pytest.approx(2 * load, rel=1e-3)
    assert times["elapsed"] == pytest.approx(0.006 + 2 * load, rel=1e-3)
    assert times["control"] == pytest.approx(0.012)


def test_operations_find_their_lanes() -> None:
    lanes = {op: Operation(op=op).where for op in OpKind}
    assert (lanes[OpKind.LOAD], lanes[OpKind.READ], lanes[OpKind.RETURN]) == (
        Lane.H2D, Lane.DISK, Lane.D2H
    )  # fmt: skip
    assert lanes[OpKind.EXPERT] == Lane.DEVICE
    assert Operation(op=OpKind.EXPERT, lane=Lane.HOST).where == Lane.HOST


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"published": []}, "published"),
        ({"published": [1, 2, 3]}, "published"),
        ({"what": ""}, "what"),
        ({"source": ""}, "source"),
        ({"published": [3, 2]}, "lowest, highest"),
        ({"published": [0]}, "published"),
        ({"unit": "GB"}, "unit"),
        ({"unit": "1"}, "ratio of operations"),
        ({"over": [LOAD]}, "ratio of operations"),
        ({"ops": []}, "ops"),
        ({"ops": [{"op": "copy"}]}, "op"),
        ({"because": "x"}, "because"),
    ],
)
def test_a_row_that_makes_no_sense_is_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Component.model_validate({**BASE, **change})
