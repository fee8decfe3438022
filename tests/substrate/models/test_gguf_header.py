"""Shapes and formats from GGUF headers: round trips, split files, large and damaged files."""

import struct
import subprocess
import sys
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moebench.substrate.errors import CheckpointError
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.models.gguf_header import BLOCKS, MOST_STRINGS, Skipped, read_header
from moebench.substrate.models.gguf_shape import read_gguf
from moebench.substrate.models.shape import GateKind, ModelShape
from tests.substrate.models.gguf_files import Kind, tensors, write_gguf

SMALL = ModelShape(
    family="newmoe", num_layers=3, hidden_size=64, vocab_size=96, num_heads=4, num_kv_heads=2,
    head_dim=16, num_experts=8, top_k=2, expert_width=32, dense_layers=(0,), dense_width=48,
    gate=GateKind.SOFTMAX_TOPK_RENORM,
)  # fmt: skip


def header_bytes(path: Path, shape: ModelShape = SMALL) -> bytes:
    """The bytes of a file's header alone."""
    return write_gguf(path, shape, whole=False).read_bytes()


def refused(path: Path) -> str:
    """The one line that refuses a file."""
    with pytest.raises(CheckpointError) as caught:
        read_gguf(path)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(str(path.parent))
    return line


# ----------------------------------------------------------------------------- round trip


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    """Generate shapes whose header says everything that the shape has."""
    flag, layers = st.booleans(), draw(st.integers(2, 6))
    kv_heads = draw(st.integers(1, 3))
    heads = kv_heads * draw(st.integers(1, 3))
    dense = draw(st.sets(st.integers(0, layers - 1), max_size=layers - 1))
    fields: dict[str, object] = {
        "family": "newmoe", "num_layers": layers, "hidden_size": 32 * draw(st.integers(1, 3)),
        "vocab_size": draw(st.integers(2, 90)), "num_heads": heads, "num_kv_heads": kv_heads,
        "head_dim": 8 * draw(st.integers(1, 3)), "num_experts": draw(st.integers(2, 9)),
        "top_k": draw(st.integers(1, 2)), "expert_width": 32 * draw(st.integers(1, 2)),
        "dense_layers": tuple(sorted(dense)), "tied_head": draw(flag),
        "dense_width": 32 * draw(st.integers(1, 3)) if dense else 0,
        "shared_width": 32 * draw(st.integers(0, 2)), "gate_bias": draw(flag),
        "ffn_matrices": draw(st.sampled_from([2, 3])), "max_positions": 4096,
        "gate": draw(st.sampled_from([GateKind.SOFTMAX_TOPK, GateKind.SOFTMAX_TOPK_RENORM,
                                      GateKind.SIGMOID_BIAS_TOPK_RENORM])),
    }  # fmt: skip
    fields["shared_gated"] = bool(fields["shared_width"]) and draw(flag)
    if draw(flag):
        fields |= {
            "num_kv_heads": heads, "head_dim": 24,
            "latent": {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
                       "v_head_dim": 12, "q_lora_rank": draw(st.sampled_from([None, 20]))},
        }  # fmt: skip
        return ModelShape(**fields)
    fields |= {
        "qkv_bias": draw(flag), "output_bias": draw(flag),
        "qk_norm": draw(st.sampled_from(["none", "head"])) if heads > 1 else "none",
        "output_gate": draw(st.sampled_from(["none", "value", "head"])),
    }  # fmt: skip
    if fields["output_gate"] == "value":  # No known model has biases of such a gate.
        fields["qkv_bias"] = False
    windowed = draw(st.sets(st.integers(1, layers - 1)))
    if windowed:
        later = tuple(sorted(windowed))
        fields["window"] = {"kind": "sliding", "size": 64, "layers": later}
        if draw(flag):
            other = {"num_heads": 2 * heads, "num_kv_heads": kv_heads, "layers": later}
            fields["other_heads"] = {**other, "head_dim": fields["head_dim"]}
    return ModelShape(**fields)


@pytest.mark.slow
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(shapes())
def test_a_header_gives_the_shape_it_was_written_from(tmp_path: Path, shape: ModelShape) -> None:
    found = read_gguf(write_gguf(tmp_path / "m.gguf", shape))
    assert found.shape == shape
    assert found.architecture == "newmoe"
    assert sum(part.weights for part in found.stored) == shape.total_params


@pytest.mark.parametrize(
    "name", ["qwen3-235b-a22b", "deepseek-v3", "dots.llm1", "minimax-m2.1", "glm-4.7-flash"]
)
def test_headers_of_models_of_2026_give_their_parameters(tmp_path: Path, name: str) -> None:
    shape = model_shape(name)
    found = read_gguf(write_gguf(tmp_path / "m.gguf", shape, whole=False)).shape
    wanted = shape.total_params
    if shape.qk_norm == "full":  # The writer of the test writes no such norms.
        wanted -= shape.num_layers * (shape.num_heads + shape.num_kv_heads) * shape.head_dim
    assert found.total_params == wanted
    assert found.expert_params == shape.expert_params
    assert found.kv_bytes(4096) == shape.kv_bytes(4096)


def test_layers_without_attention_or_feed_forward_are_found(tmp_path: Path) -> None:
    shape = SMALL.model_copy(
        update={
            "num_layers": 4, "dense_layers": (0, 2), "without_ffn": (0, 2), "dense_width": 0,
            "without_attention": (1, 3), "ffn_matrices": 2,
        }
    )  # fmt: skip
    found = read_gguf(write_gguf(tmp_path / "m.gguf", shape)).shape
    assert (found.moe_layers, found.without_ffn) == ((1, 3), (0, 2))
    assert found.without_attention == (1, 3)
    assert found.total_params == shape.total_params


def test_linear_layers_have_a_state_and_no_cache(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "qwen3next")
    whole = {name: dims for name, dims in tensors(SMALL) if not name.startswith("blk.1.attn")}
    whole |= {"blk.1.ssm_conv1d.weight": (40, 4), "blk.1.ssm_out.weight": (64, 24)}
    writer.add_block_count(3)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(16)
    writer.add_expert_count(8)
    writer.add_expert_used_count(2)
    writer.add_ssm_inner_size(24)
    writer.add_ssm_state_size(8)
    for name, dims in whole.items():
        size = 4
        for dim in dims:
            size *= dim
        writer.add_tensor_info(name, dims, gguf.np.dtype("float32"), size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    found = read_gguf(path).shape
    assert found.family == "qwen3_next"
    assert found.linear is not None
    assert (found.linear.layers, found.linear.params) == ((1,), 40 * 4 + 64 * 24)
    assert (found.state_values(1), found.state_values(0)) == (24 * 8 + 3 * 40, 0)
    assert found.kv_values(1, 1000) == 0
    assert found.kv_values(0, 1000) == 1000 * 2 * 2 * 16


def test_counts_replace_a_formula_that_does_not_reproduce_the_tensors(tmp_path: Path) -> None:
    extra = [("blk.2.attn_extra.weight", (10, 64))]
    found = read_gguf(write_gguf(tmp_path / "m.gguf", SMALL, more=extra)).shape
    plain = SMALL.attention_params
    assert found.attention_counts == (plain, plain, plain + 640)
    assert found.total_params == SMALL.total_params + 640


def test_prediction_layers_are_left_out(tmp_path: Path) -> None:
    more = [("blk.2.nextn.eh_proj.weight", (64, 128))]
    found = read_gguf(write_gguf(tmp_path / "m.gguf", SMALL, more=more))
    assert found.shape.num_layers == 2
    assert sum(part.weights for part in found.stored) == found.shape.total_params


# ----------------------------------------------------------------------------- formats


def test_block_types_are_those_of_the_gguf_package() -> None:
    named = {
        kind.value: (kind.name.lower(), *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()
    }
    assert {number: named[number] for number in BLOCKS} == BLOCKS


def test_bits_are_by_tensor_class(tmp_path: Path) -> None:
    shape = SMALL.model_copy(update={"hidden_size": 256, "expert_width": 256, "shared_width": 256})
    kinds = {"routed": Kind.IQ2_XS, "others": Kind.Q8_0}
    shape = shape.model_copy(update={"dense_width": 256, "num_heads": 16})
    stored = read_gguf(write_gguf(tmp_path / "m.gguf", shape, kinds)).stored
    assert stored.routed.bits == pytest.approx(2.3125)
    assert stored.shared.bits == stored.vocabulary.bits == pytest.approx(8.5)
    assert stored.attention.bits == pytest.approx(8.5)
    assert stored.bits.routed == pytest.approx(2.3125)
    assert 8.5 < stored.bits.others < 8.7  # Norms and routers are f32.
    assert stored.routed.weights == shape.routed_params


def test_unknown_types_are_sized_by_their_place(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", SMALL)
    content = path.read_bytes()
    name = b"blk.1.ffn_up_exps.weight"
    at = content.index(name) + len(name) + 4 + 3 * 8
    path.write_bytes(content[:at] + struct.pack("<I", 139) + content[at + 4 :])
    (found,) = [t for t in read_header(path).tensors if t.name == name.decode()]
    assert (found.kind, found.size_bytes) == ("type 139", 2 * found.weights)


# ----------------------------------------------------------------------------- split files


def test_split_file_is_read_from_any_of_its_parts(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", SMALL, tensors_per_part=9)
    parts = sorted(tmp_path.glob("m-*.gguf"))
    assert len(parts) > 2
    for part in parts:
        assert read_gguf(part).shape == SMALL
    parts[1].unlink()
    assert refused(parts[0]).startswith(f"{parts[1]}: is missing (1 of {len(parts)} parts)")


def test_mixed_up_parts_are_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", SMALL, tensors_per_part=9)
    first, second, *_ = sorted(tmp_path.glob("m-*.gguf"))
    alone = tmp_path / "alone.gguf"
    alone.write_bytes(first.read_bytes())
    assert "parts of a split file" in refused(alone)
    first.write_bytes(second.read_bytes())
    assert "its header says part 1" in refused(first)
    assert "no such part" in refused(tmp_path / "m-00009-of-00003.gguf")


# ----------------------------------------------------------------------------- large files

_MEASURED = """
import resource, sys
from pathlib import Path
from moebench.substrate.models.gguf_shape import read_gguf
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read_gguf(Path(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_header_of_a_large_sparse_file_is_read_without_its_texts(tmp_path: Path) -> None:
    shape = model_shape("qwen3-235b-a22b")
    kinds = {"routed": Kind.IQ2_XXS, "others": Kind.Q4_K}
    path = write_gguf(tmp_path / "big.gguf", shape, kinds, tokens=shape.vocab_size)
    assert path.stat().st_size > 60e9
    assert path.stat().st_blocks * 512 < 20e6  # the data is a hole
    ran = subprocess.run(
        [sys.executable, "-c", _MEASURED, str(path)], capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) < 40_000  # KB: the vocabulary's texts are skipped
    tokens = read_header(path).values["tokenizer.ggml.tokens"]
    assert tokens == Skipped(shape.vocab_size)


# ----------------------------------------------------------------------------- damaged files


def test_truncated_headers_are_refused(tmp_path: Path) -> None:
    whole, path = header_bytes(tmp_path / "m.gguf"), tmp_path / "cut.gguf"
    for size in [*range(0, len(whole) - 97, 97), 1, 3, 4, 23, len(whole) - 40]:
        path.write_bytes(whole[:size])
        line = refused(path)
        assert "ends inside its header" in line or "GGUF" in line
    path.write_bytes(whole)  # A file without its data: the header suffices.
    assert read_gguf(path).shape == SMALL


@pytest.mark.slow
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_changed_bytes_are_read_or_refused_with_one_line(
    tmp_path: Path, data: st.DataObject
) -> None:
    whole = bytearray(header_bytes(tmp_path / "m.gguf"))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
    path = tmp_path / "changed.gguf"
    path.write_bytes(bytes(whole))
    line = ""
    try:
        read_gguf(path)
    except CheckpointError as error:
        line = str(error)
    assert "\n" not in line


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty file"),
        (b"PK\x03\x04" * 20, "does not begin with GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 1, 1, 1), "GGUF version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 1), "claims 9223372036854775808 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 2**40), "claims 1099511627776 key-values"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 2**62), "bytes of text"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 8, 2**60), "texts"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 4, 2**60), "ends inside"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 77), "unknown value type 77"),
        (b"GGUF" + struct.pack("<IQQQ2s", 3, 0, 1, 2, b"\xff\xff"), "not UTF-8"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "block_count is missing"),
    ],
)  # fmt: skip
def test_impossible_headers_are_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    assert says in refused(path)


@pytest.mark.slow
def test_a_hole_full_of_texts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    head = struct.pack("<IQQQ1sIIQ", 3, 0, 2, 1, b"k", 9, 8, MOST_STRINGS)
    path.write_bytes(b"GGUF" + head)
    with path.open("r+b") as file:
        file.truncate(60 * 10**9)
    refused(path)


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refused(tmp_path / "none.gguf")
    (tmp_path / "folder.gguf").mkdir()
    assert "not a regular file" in refused(tmp_path / "folder.gguf")


def test_models_without_experts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(64)
    for name, dims in ("token_embd.weight", (96, 64)), ("blk.0.ffn_up.weight", (64, 64)):
        writer.add_tensor_info(name, dims, gguf.np.dtype("float32"), 4 * dims[0] * dims[1])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    assert "has no routed experts (architecture 'llama')" in refused(path)
