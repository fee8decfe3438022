"""Shapes and formats from GGUF headers: round trips, split files, large and damaged files."""

import struct
import subprocess
import sys
from math import prod
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moebench.substrate.errors import CheckpointError
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.models.gguf_header import BLOCKS, MOST_STRINGS, Header, Skipped, read_header
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
        (b"PK\x03\x04" * 20, "does not begin with GGUF; allowed: a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 1, 1), "version 1; allowed: 2 and 3; convert it again"),
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


# ----------------------------------------------------------------------------- bytes by hand


def packed(order: str, *values: tuple[bytes, int, bytes], infos: bytes = b"", tensors: int = 0,
           version: int = 3) -> bytes:  # fmt: skip
    """Return a header: values as key, number of the type and bytes, then tensors."""
    content = b"GGUF" + struct.pack(f"{order}IQQ", version, tensors, len(values))
    for key, kind, raw in values:
        content += struct.pack(f"{order}Q", len(key)) + key + struct.pack(f"{order}I", kind) + raw
    return content + infos


def info(name: bytes, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    """Return the entry of a tensor."""
    return struct.pack(f"<Q{len(name)}sI{len(dims)}QIQ", len(name), name, len(dims), *dims, kind,
                       offset)  # fmt: skip


def read(tmp_path: Path, content: bytes, name: str = "m.gguf") -> Header:
    (tmp_path / name).write_bytes(content)
    return read_header(tmp_path / name)


def says(tmp_path: Path, content: bytes) -> str:
    with pytest.raises(CheckpointError) as found:
        read(tmp_path, content)
    return str(found.value).removeprefix(f"{tmp_path / 'm.gguf'}: ")


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("version", [2, 3])
def test_values_of_all_types(order: str, version: int, tmp_path: Path) -> None:
    """A number has the bytes of its type, a text its length before it; 1e-6 is not 9.99...e-7."""
    numbers = {0: ("B", 200), 1: ("b", -2), 2: ("H", 60_000), 3: ("h", -300), 4: ("I", 2**31),
               5: ("i", -(2**20)), 6: ("f", 1e-6), 7: ("?", True), 10: ("Q", 2**60),
               11: ("q", -(2**60)), 12: ("d", 0.1)}  # fmt: skip
    values = [(f"k{kind}".encode(), kind, struct.pack(order + code, value))
              for kind, (code, value) in numbers.items()]  # fmt: skip
    values += [
        (b"text", 8, struct.pack(f"{order}Q2s", 2, "π".encode())),
        (b"list", 9, struct.pack(f"{order}IQ3h", 3, 3, 1, -1, 7)),
        (b"none", 9, struct.pack(f"{order}IQ", 4, 0)),
        (b"texts", 9, struct.pack(f"{order}IQQ1sQ2s", 8, 2, 1, b"a", 2, b"bc")),
        (b"last", 4, struct.pack(f"{order}I", 5)),
    ]
    found = read(tmp_path, packed(order, *values, version=version)).values
    assert found == {f"k{kind}": value for kind, (_, value) in numbers.items()} | {
        "text": "π", "list": (1, -1, 7), "none": (), "texts": Skipped(2), "last": 5,
    }  # fmt: skip


def test_long_arrays_and_texts_are_skipped(tmp_path: Path) -> None:
    """Ten thousand numbers and 65,535 bytes are read, one more is not."""

    def array(count: int) -> bytes:
        return struct.pack("<IQ", 0, count) + bytes(count)

    def text(length: int) -> bytes:
        return struct.pack("<Q", length) + b"x" * length

    last = (b"last", 4, struct.pack("<I", 9))
    kept = read(tmp_path, packed("<", (b"a", 9, array(10_000)), (b"t", 8, text(65_535)), last))
    assert kept.values == {"a": (0,) * 10_000, "t": "x" * 65_535, "last": 9}
    left = read(tmp_path, packed("<", (b"a", 9, array(10_001)), (b"t", 8, text(65_536)), last))
    assert left.values == {"a": Skipped(10_001), "t": Skipped(65_536), "last": 9}


def test_values_that_end_or_are_of_no_type_are_refused(tmp_path: Path) -> None:
    ended = "ends inside its header (at byte "
    for kind, raw in (
        (4, b"abc"), (8, struct.pack("<Q", 9) + b"short"), (8, struct.pack("<Q", 70_000) + b"s"),
        (9, struct.pack("<IQ", 0, 3) + b"ab"), (9, struct.pack("<IQ", 0, 10_001) + bytes(10_000)),
        (9, struct.pack("<IQQ", 8, 1, 50) + b"text"), (9, struct.pack("<IQ", 8, 2**63)),
    ):  # fmt: skip
        content = packed("<", (b"k", kind, raw))
        line = says(tmp_path, content)
        if "claims" not in line:
            assert line == f"{ended}{len(content)}); download it again", (kind, raw[:20])
    assert says(tmp_path, packed("<", (b"k", 9, struct.pack("<IQ", 9, 1)))).startswith(
        "array of unknown value type 9; "
    )
    assert says(tmp_path, packed("<", (b"k", 13, b""))).startswith("unknown value type 13")
    one = (b"k", 0, b"1")
    assert says(tmp_path, packed("<", one, one)) == (
        "key 'k' is empty or there twice; download it again"
    )
    assert "key '' is empty or there twice" in says(tmp_path, packed("<", (b"", 0, b"1")))
    assert says(tmp_path, packed("<", version=4)) == (
        "GGUF version 4; allowed: 2 and 3; convert it again"
    )


def test_tensors_have_the_bytes_of_their_type_and_dimensions(tmp_path: Path) -> None:
    infos = info(b"a", (64, 3), 2, 0) + info(b"b", (5,), 0, 128) + info(b"c", (), 1, 160)
    infos += info(b"d", (256, 2, 2, 2), 14, 192)
    found = read(tmp_path, packed("<", infos=infos, tensors=4)).tensors
    assert [(t.name, t.dims, t.kind, t.size_bytes, t.weights) for t in found] == [
        ("a", (64, 3), "q4_0", 6 * 18, 192), ("b", (5,), "f32", 20, 5), ("c", (), "f16", 2, 1),
        ("d", (256, 2, 2, 2), "q6_k", 8 * 210, 2048),
    ]  # fmt: skip


def test_unknown_types_reach_to_the_next_tensor_or_the_end(tmp_path: Path) -> None:
    """Data begin at a multiple of the alignment: 32, or what the header says."""
    for align, value in ((32, None), (64, 64), (32, 0), (32, 2**21)):
        values = []
        if value is not None:
            values = [(b"general.alignment", 4, struct.pack("<I", value))]
        infos = info(b"a", (7,), 99, 0) + info(b"b", (7,), 0, 96) + info(b"c", (7,), 98, 128)
        content = packed("<", *values, infos=infos, tensors=3)
        data = -(-len(content) // align) * align
        found = read(tmp_path, content.ljust(data, b"\0") + bytes(128 + 11)).tensors
        assert [(t.kind, t.size_bytes) for t in found] == [
            ("type 99", 96), ("f32", 28), ("type 98", 11),
        ], value  # fmt: skip
    line = says(tmp_path, content)
    assert "tensor 'c' has the unknown type 98, and its data is not in the file" in line
    assert line.endswith("; give the whole file")


def test_impossible_tensors_are_refused(tmp_path: Path) -> None:
    def of(*entries: bytes) -> str:
        return says(tmp_path, packed("<", infos=b"".join(entries), tensors=len(entries)))

    assert "tensor 'a' has 5 dimensions (most: 4)" in of(info(b"a", (1,) * 5, 0, 0))
    assert "tensor '' has 1 dimensions" in of(info(b"", (1,), 0, 0))
    for dims in ((0, 3), (2**40 + 1,), (2**26, 2**25)):
        assert "tensor 'a' has impossible dimensions" in of(info(b"a", dims, 0, 0)), dims
    assert "a tensor is there twice" in of(info(b"a", (1,), 0, 0), info(b"a", (2,), 0, 32))
    assert (
        "tensor 'a' has rows of 33 weights, not of whole q4_0 blocks of 32; download it again"
        in of(info(b"a", (33, 2), 2, 0))
    )
    limits = read(tmp_path, packed("<", infos=info(b"a", (2**40, 2**10), 24, 0), tensors=1))
    assert limits.tensors[0].size_bytes == 2**50


def split(number: int, count: int, *names: bytes, total: int | None = None) -> bytes:
    values = [(b"split.no", 2, struct.pack("<H", number)),
              (b"split.count", 2, struct.pack("<H", count))]  # fmt: skip
    if total is not None:
        values.append((b"split.tensors.count", 5, struct.pack("<i", total)))
    infos = b"".join(info(name, (2,), 0, 32 * n) for n, name in enumerate(names))
    return packed("<", *values, (b"part", 0, bytes([number])), infos=infos, tensors=len(names))


def test_parts_are_joined_with_the_values_of_the_first(tmp_path: Path) -> None:
    one, two = (tmp_path / f"m-0000{n}-of-00002.gguf" for n in (1, 2))
    one.write_bytes(split(0, 2, b"a", b"b", total=3))
    two.write_bytes(split(1, 2, b"c"))
    for part in (one, two):
        header = read_header(part)
        assert [t.name for t in header.tensors] == ["a", "b", "c"]
        assert header.values["part"] == 0
    two.write_bytes(split(1, 3, b"c"))
    with pytest.raises(CheckpointError, match=r"00002-of-00002.gguf: its header says part 1 of 3 "):
        read_header(one)
    for content in (split(1, 2, b"a"), split(1, 2, b"c", b"d")):
        two.write_bytes(content)
        with pytest.raises(CheckpointError, match="parts of different files are mixed"):
            read_header(one)
    (tmp_path / "m-00001-of-00001.gguf").write_bytes(packed("<"))
    assert read_header(tmp_path / "m-00001-of-00001.gguf").values == {}
    for name, most in (
        ("m-00000-of-00002", 2),
        ("m-00001-of-99999", 10_000),
        ("m-00003-of-00002", 2),
    ):
        with pytest.raises(CheckpointError, match=f"no such part; allowed: 1 to {most}$"):
            read_header(tmp_path / f"{name}.gguf")
    with pytest.raises(CheckpointError, match="one of 2 parts of a split file; name the parts"):
        read(tmp_path, split(0, 2, b"a"))
    assert [t.name for t in read(tmp_path, split(0, 1, b"a")).tensors] == ["a"]


def test_blocks_of_every_type_until_nvfp4_are_known() -> None:
    known = {one.value for one in gguf.GGMLQuantizationType}
    assert {number for number in known if number <= gguf.GGMLQuantizationType.NVFP4} == {*BLOCKS}


# ----------------------------------------------------------------------------- byte by byte


def _text(text: str, order: str = "<") -> bytes:
    return struct.pack(f"{order}Q", len(text.encode())) + text.encode()


def _key(name: str, kind: int, value: bytes, order: str = "<") -> bytes:
    return _text(name, order) + struct.pack(f"{order}I", kind) + value


def _tensor(name: str, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    numbers = struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
    return _text(name) + numbers


def _header(
    path: Path, keys: list[bytes], tensors: list[bytes] | None = None, data: bytes = b"",
    version: int = 3, order: str = "<",
) -> Header:  # fmt: skip
    tensors = tensors or []
    counts = struct.pack(f"{order}IQQ", version, len(tensors), len(keys))
    path.write_bytes(b"".join([b"GGUF", counts, *keys, *tensors, data]))
    return read_header(path)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("kind", "code", "value"),
    [(0, "B", 200), (1, "b", -3), (2, "H", 60_000), (3, "h", -30_000), (4, "I", 4 * 10**9),
     (5, "i", -(10**9)), (6, "f", 1e-6), (7, "?", True), (10, "Q", 2**63), (11, "q", -(2**62)),
     (12, "d", 0.1)],
)  # fmt: skip
def test_every_type_of_value_in_both_orders_of_bytes(
    tmp_path: Path, kind: int, code: str, value: float, order: str
) -> None:
    one = _key("one", kind, struct.pack(order + code, value), order)
    few = struct.pack(f"{order}IQ2{code}", kind, 2, value, value)
    found = _header(tmp_path / "m.gguf", [
        one, _key("few", 9, few, order), _key("text", 8, _text("größer", order), order),
        _key("texts", 9, struct.pack(f"{order}IQ", 8, 2) + 2 * _text("ab", order), order),
    ], order=order).values  # fmt: skip
    assert [*found] == ["one", "few", "text", "texts"]
    assert found["one"] == value
    assert type(found["one"]) is type(value)
    assert found["few"] == pytest.approx((value, value), rel=1e-6)
    assert found["text"] == "größer"
    assert found["texts"] == Skipped(2)


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (8, _text("x" * 65_535), "x" * 65_535),
        (8, _text("x" * 65_536), Skipped(65_536)),
        (9, struct.pack("<IQ10000B", 0, 10_000, *[7] * 10_000), (7,) * 10_000),
        (9, struct.pack("<IQ10001B", 0, 10_001, *[7] * 10_001), Skipped(10_001)),
        (9, struct.pack("<IQ", 8, 2) + _text("ab") + _text("cde"), Skipped(2)),
        (9, struct.pack("<IQ", 8, 0), Skipped(0)),
    ],
    ids=["text", "long text", "array", "long array", "texts", "no text"],
)
def test_a_value_may_end_where_the_file_does_but_not_beyond(
    tmp_path: Path, kind: int, value: bytes, found: object
) -> None:
    path = tmp_path / "m.gguf"
    assert _header(path, [_key("k", kind, value)]).values == {"k": found}
    whole = path.read_bytes()
    for missing in (1, 2, 5):
        path.write_bytes(whole[:-missing])
        with pytest.raises(CheckpointError) as caught:
            read_header(path)
        assert str(caught.value) == (
            f"{path}: ends inside its header (at byte {len(whole) - missing}); download it again"
        )


ONE = _key("k", 0, b"\x01")


@pytest.mark.parametrize(
    ("keys", "tensors", "says"),
    [
        ([ONE, ONE], [], "key 'k' is empty or there twice; download"),
        ([_key("", 0, b"\x01")], [], "key '' is empty or there twice"),
        ([], [_tensor("t", (4,), 0, 0)] * 2, "a tensor is there twice; download"),
        ([], [_tensor("", (4,), 0, 0)], "tensor '' has 1 dimensions (most: 4)"),
        ([], [_tensor("t", (1,) * 5, 0, 0)], "tensor 't' has 5 dimensions (most: 4)"),
        ([], [_tensor("t", (4, 0), 0, 0)], "tensor 't' has impossible dimensions"),
        ([], [_tensor("t", (2**40 + 1,), 0, 0)], "tensor 't' has impossible dimensions"),
        ([], [_tensor("t", (2**26, 2**24 + 1), 0, 0)], "tensor 't' has impossible dimensions"),
        ([], [_tensor("t", (33, 2), 8, 0)],
         "tensor 't' has rows of 33 weights, not of whole q8_0 blocks of 32; download"),
        ([_key("k", 9, struct.pack("<IQ", 13, 1))], [], "array of unknown value type 13; download"),
    ],
)  # fmt: skip
def test_what_no_header_can_say_is_refused(
    tmp_path: Path, keys: list[bytes], tensors: list[bytes], says: str
) -> None:
    path = tmp_path / "m.gguf"
    with pytest.raises(CheckpointError) as caught:
        _header(path, keys, tensors)
    assert str(caught.value).startswith(f"{path}: {says}")


@pytest.mark.parametrize("version", [2, 3])
def test_the_largest_dimensions_and_both_versions_are_read(tmp_path: Path, version: int) -> None:
    dims = [(), (2**40,), (2**25, 2**25), (1, 1, 1, 1)]
    tensors = [_tensor(f"t{n}", some, 0, 0) for n, some in enumerate(dims)]
    found = _header(tmp_path / "m.gguf", [ONE], tensors, version=version)
    assert [(t.dims, t.kind, t.size_bytes) for t in found.tensors] == [
        (some, "f32", 4 * prod(some)) for some in dims
    ]
    with pytest.raises(CheckpointError, match=r"GGUF version 4; allowed: 2 and 3; convert it"):
        _header(tmp_path / "m.gguf", [ONE], version=4)


@pytest.mark.parametrize(
    ("what", "counts", "most"),
    [("tensors", (200_000, 0), 200_000), ("key-values", (0, 10_000), 10_000)],
)
def test_a_header_claims_so_many_parts_at_most(
    tmp_path: Path, what: str, counts: tuple[int, int], most: int
) -> None:
    path = tmp_path / "m.gguf"
    beyond = f"its header claims {most + 1} {what} (most: {most}); download"
    for more, says in ((0, "ends inside its header"), (1, beyond)):
        claimed = [count + more if count else 0 for count in counts]
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, *claimed))
        with pytest.raises(CheckpointError) as caught:
            read_header(path)
        assert str(caught.value).startswith(f"{path}: {says}")


@pytest.mark.parametrize(("stated", "align"), [(None, 32), (64, 64), (0, 32), (2**21, 32)])
def test_data_of_an_unknown_type_ends_where_the_next_tensors_begins(
    tmp_path: Path, stated: int | None, align: int
) -> None:
    keys = [] if stated is None else [_key("general.alignment", 4, struct.pack("<I", stated))]
    tensors = [_tensor("a", (8,), 99, 0), _tensor("c", (8,), 98, 640), _tensor("b", (8,), 0, 512)]
    path = tmp_path / "m.gguf"
    head = 4 + 20 + sum(map(len, [*keys, *tensors]))
    padding = -head % align
    found = _header(path, keys, tensors, bytes(padding + 700))
    assert [(t.name, t.kind, t.size_bytes) for t in found.tensors] == [
        ("a", "type 99", 512), ("c", "type 98", 60), ("b", "f32", 32),
    ]  # fmt: skip
    with pytest.raises(CheckpointError) as caught:
        _header(path, keys, tensors, bytes(padding + 640))
    assert str(caught.value) == (
        f"{path}: tensor 'c' has the unknown type 98, and its data is not in the file, so that "
        "its size is unknown; give the whole file"
    )
