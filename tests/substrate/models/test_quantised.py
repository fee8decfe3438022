"""Quantised matrices and records: errors, sizes in bytes, and products."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.substrate.errors import UsageError
from moebench.substrate.machines.local import LocalMachine
from moebench.substrate.machines.protocol import Lane
from moebench.substrate.machines.records import DiskRecords, EmulatedLink, MemoryRecords, rows
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.models.checkpoint import Checkpoint
from moebench.substrate.models.expert_store import ExpertStore
from moebench.substrate.models.formats import format_of
from moebench.substrate.models.fused import fused_swiglu
from moebench.substrate.models.quantised import PACKINGS
from moebench.substrate.models.resident import ResidentExperts
from moebench.substrate.models.shape import group_of
from tests.substrate.machines.clients import Client, load_op
from tests.substrate.models.checkpoints import make_checkpoint

#: Half the distance between neighbours in bf16, as a share of the number.
BF16 = 2**-8

#: Rows and inputs: torch multiplies the first ones packed, the others are unpacked.
TOGETHER = [(16, 32), (48, 64), (32, 96), (80, 128), (16, 384)]
ALONE = [(8, 4), (12, 52), (112, 56), (16, 2), (20, 96)]

#: Formats whose rows share an fp16 scale, with their largest code.
BY_ROW = {"row-int4": 7, "row-int2": 1}

BOTH = pytest.mark.parametrize("stored_as", ["int4", "int8"])


@st.composite
def matrices(draw: st.DrawFn, dims: list[tuple[int, int]]) -> torch.Tensor:
    """Generate matrices of any scale and offset; some rows are constant."""
    n, k = draw(st.sampled_from(dims))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    spread, offset = draw(st.floats(0, 1e3)), draw(st.floats(-1e3, 1e3))
    return torch.randn(n, k, generator=generator) * spread + offset


@given(matrix=matrices(TOGETHER + ALONE))
@settings(max_examples=60, deadline=None)
def test_int4_is_off_by_half_a_scale_at_most(matrix: torch.Tensor) -> None:
    n, k = matrix.shape
    group = group_of(k)
    off = (PACKINGS["int4"](n, k).rounded(matrix) - matrix).view(n, -1, group).abs().amax(-1)
    low, high = (f(matrix.view(n, -1, group), -1) for f in (torch.amin, torch.amax))
    # 15 steps cover a group; where it is narrow beside its distance from 0, the zero point's own
    # rounding decides.  A scale is rounded up to bf16.
    scale = torch.maximum((high - low) / 15, (high + low).abs() / 240) * (1 + 2 * BF16)
    assert (off <= scale / 2 * 1.0001 + 1e-6 * matrix.abs().max() + 1e-29).all()


@given(matrix=matrices(TOGETHER + ALONE))
@settings(max_examples=60, deadline=None)
def test_int8_is_off_by_half_a_scale_at_most(matrix: torch.Tensor) -> None:
    off = (PACKINGS["int8"](*matrix.shape).rounded(matrix) - matrix).abs().amax(-1)
    scale = matrix.abs().amax(-1) / 127 * (1 + 2 * BF16)
    assert (off <= scale / 2 * 1.0001 + 1e-6 * matrix.abs().max() + 1e-29).all()


@pytest.mark.parametrize("stored_as", BY_ROW)
@given(matrix=matrices([*TOGETHER, (8, 4), (12, 52), (20, 96)]))
@settings(max_examples=40, deadline=None)
def test_rows_of_few_bits_are_off_by_half_a_scale_and_unpack_to_what_they_stand_for(
    stored_as: str, matrix: torch.Tensor
) -> None:
    matrix, most = matrix.clamp(-1e4, 1e4), BY_ROW[stored_as]  # scales are fp16
    packing = PACKINGS[stored_as](*matrix.shape)
    rounded = packing.rounded(matrix)
    scale = matrix.abs().amax(-1, keepdim=True) / most
    # The scale's rounding moves the largest code by its own error, `most` times.
    off = 0.5 + most * 2**-11
    assert ((rounded - matrix).abs() <= scale * off * 1.001 + 2**-24 * most).all()
    assert all(len(row.unique()) <= 2 * most + 1 for row in rounded)
    packed = packing.pack(matrix)
    assert (packed.dtype, packed.nbytes) == (torch.uint8, packing.size_bytes)
    assert packing.size_bytes == matrix.numel() * {7: 4, 1: 2}[most] // 8 + 2 * len(matrix)
    unpacked = packing.linear(torch.eye(matrix.shape[1]), packed).T
    torch.testing.assert_close(unpacked, rounded, rtol=1e-5, atol=1e-6)


def test_two_bits_by_hand() -> None:
    # The scale is 2: 1.5 is nearer to 2 than to 0, 0.9 nearer to 0.  Codes -1, 1, 1, 0 plus 1.
    packing = PACKINGS["row-int2"](1, 4)
    matrix = torch.tensor([[-2.0, 2.0, 1.5, 0.9]])
    assert packing.rounded(matrix).tolist() == [[-2.0, 2.0, 2.0, 0.0]]
    packed = packing.pack(matrix).tolist()
    assert packed == [0 + (2 << 2) + (2 << 4) + (1 << 6), 0x00, 0x40]


@BOTH
@given(matrix=matrices(TOGETHER), count=st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_the_packed_product_is_off_by_the_rounding_to_bf16(
    stored_as: str, matrix: torch.Tensor, count: int
) -> None:
    packing = PACKINGS[stored_as](*matrix.shape)
    assert packing.together
    x = torch.randn(count, matrix.shape[1], generator=torch.Generator().manual_seed(count))
    wanted, rounded = x @ packing.rounded(matrix).T, packing.rounded(matrix)
    found = packing.linear(x, packing.pack(matrix))
    assert found.dtype == torch.float32
    # Inputs are rounded, and the output; fp32 sums in another order are below that.
    most = 1.01 * BF16 * (x.abs() @ rounded.abs().T + wanted.abs()) + 1e-6
    assert ((found - wanted).abs() <= most).all()


@BOTH
@given(matrix=matrices(ALONE))
@settings(max_examples=40, deadline=None)
def test_where_torch_has_no_product_numbers_are_unpacked(
    stored_as: str, matrix: torch.Tensor
) -> None:
    packing = PACKINGS[stored_as](*matrix.shape)
    assert not packing.together
    unpacked = packing.linear(torch.eye(matrix.shape[1]), packing.pack(matrix)).T
    torch.testing.assert_close(unpacked, packing.rounded(matrix), rtol=1e-5, atol=1e-4)


@BOTH
def test_zeros_stay_zeros(stored_as: str) -> None:
    rounded = PACKINGS[stored_as](16, 32).rounded(torch.zeros(16, 32))
    assert rounded.abs().max() < 1e-29


@pytest.mark.parametrize(
    ("inputs", "group"),
    [(4096, 128), (14336, 128), (1408, 128), (2880, 64), (96, 32), (56, 56), (260, 65), (4, 4)],
)
def test_group_size_divides_the_input_width(inputs: int, group: int) -> None:
    assert group_of(inputs) == group


# ----------------------------------------------------------------------------- records

#: By hand, for H = 64 and I = 32: gate above up [64, 64], down [64, 32]; a group is a whole row.
PACKED = {"int4": 64 * (32 + 4) + 64 * (16 + 4), "int8": 64 * (64 + 2) + 64 * (32 + 2)}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Checkpoint:
    path = tmp_path_factory.mktemp("mixtral")
    return Checkpoint(make_checkpoint(path, "mixtral", hidden_size=64, intermediate_size=32))


@BOTH
def test_a_record_has_the_bytes_that_are_counted(stored_as, checkpoint, tmp_path):
    shape, layer = checkpoint.shape, checkpoint.shape.moe_layers[0]
    made = format_of(shape, stored_as)
    record = made.encode(checkpoint.expert_record(layer, 1, torch.float32))
    assert record.dtype == torch.uint8
    assert record.nbytes == made.record_bytes == shape.expert_bytes(stored_as) == PACKED[stored_as]
    link = EmulatedLink(1e12)
    with DiskRecords(ExpertStore.build(checkpoint, tmp_path / "e.bin", stored_as)) as disk:
        for found in (disk, MemoryRecords(checkpoint, stored_as, link)):
            slot = rows(1, found.stride_bytes, "a slot")[0]
            found.copy(layer, 1, slot, 0, found.stride_bytes)
            assert torch.equal(slot[: record.nbytes], record)
    count = len(shape.moe_layers) * shape.num_experts
    assert (tmp_path / "e.bin").stat().st_size == count * found.stride_bytes


@BOTH
def test_loads_move_the_packed_bytes(stored_as, checkpoint, tmp_path):
    timeline, layer = Timeline(keep_all=True), checkpoint.shape.moe_layers[0]
    store = ExpertStore.build(checkpoint, tmp_path / "e.bin", stored_as)
    with DiskRecords(store) as disk, LocalMachine(disk, 2, timeline) as machine:
        assert machine.slots.shape == (2, PACKED[stored_as])
        machine.wait(machine.load(load_op(layer, 0), Client(slots={0: 1})))
    assert timeline.bytes_moved(Lane.DISK) == PACKED[stored_as]


@BOTH
def test_an_expert_s_packed_matrices_compute_what_its_rounded_ones_do(stored_as, checkpoint):
    shape, layer = checkpoint.shape, checkpoint.shape.moe_layers[0]
    made = format_of(shape, stored_as)
    record = checkpoint.expert_record(layer, 2, torch.float32)
    everything = ResidentExperts(checkpoint, torch.float32, stored_as)
    x = torch.randn(5, shape.hidden_size, generator=torch.Generator().manual_seed(0))
    found = fused_swiglu(x, *made.matrices(made.encode(record)))
    wanted = fused_swiglu(x, *everything.matrices(layer, 2))
    assert (found - wanted).norm() < 0.01 * wanted.norm()
    exact = fused_swiglu(x, *format_of(shape, torch.float32).matrices(record))
    assert not torch.equal(wanted, exact)


def test_what_cannot_be_quantised_is_one_line(checkpoint):
    biased = checkpoint.shape.model_copy(update={"expert_bias": True})
    with pytest.raises(UsageError, match=r"^--expert-dtype int8: experts of family mixtral have"):
        format_of(biased, "int8")
    odd = checkpoint.shape.model_copy(update={"expert_width": 33})
    with pytest.raises(UsageError, match="have rows of 33 numbers; allowed: even"):
        format_of(odd, "int4")
