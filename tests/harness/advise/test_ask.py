"""Questions as users type them: names, sizes, lengths, files, and one clear line for others."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.harness.advise.ask import question, tokens, with_context
from moebench.harness.advise.formats import LEAST, MOST
from moebench.harness.advise.machine import gib, hardware, machine_text
from moebench.harness.advise.question import Question
from moebench.substrate.errors import CheckpointError, MoeBenchError, UsageError
from moebench.substrate.models.bits import bits_of
from moebench.substrate.models.catalogue import model_shape
from moebench.substrate.models.shape import ModelShape
from tests.substrate.models import gguf_files
from tests.substrate.models.test_gguf_header import SMALL

PARTS = hardware(gpu="rtx-3090", cpu="ryzen-5950x", ram="64")


def asked(**more: Any) -> Question:
    return question(**({"model": "gpt-oss-120b", "quant": None, "hardware": PARTS} | more))


@pytest.mark.parametrize(
    ("typed", "size"),
    [("64", 64), ("64GB", 64), ("64 GiB", 64), ("64gib", 64), ("1.5T", 1536), ("1 TiB", 1024)],
)
def test_a_size_of_memory_is_that_of_the_modules(typed: str, size: float) -> None:
    assert gib("--ram", typed) == size


@pytest.mark.parametrize("typed", ["", "64MB", "0", "-4", "many", "1e9", "nan", "64GB64"])
def test_other_sizes_are_refused(typed: str) -> None:
    with pytest.raises(UsageError, match="--ram"):
        gib("--ram", typed)


@given(st.integers(1, 4096))
def test_a_k_is_1024_tokens(count: int) -> None:
    assert tokens("--context", f"{count}k", 1) == tokens("--context", str(1024 * count), 1)


@pytest.mark.parametrize("typed", ["", "k", "-1", "1.0001", "32kk", "inf", "9" * 12])
def test_other_lengths_are_refused(typed: str) -> None:
    with pytest.raises(UsageError, match="--context"):
        tokens("--context", typed, 1)


@pytest.mark.parametrize(
    ("given_", "text"),
    [
        ({"gpu": "RTX 3090", "cpu": "Ryzen 9 5950X", "ram": "64"},
         "rtx-3090+ryzen-9-5950x+ram=64"),
        ({"gpu": "2x rtx-3090", "cpu": "xeon-6454s*2", "memory": "ddr5-4800*16"},
         "rtx-3090*2+xeon-gold-6454s*2+ddr5-4800*16"),
        ({"gpu": "rtx-3090*2", "cpu": "dual Xeon Gold 6454S"}, "rtx-3090*2+xeon-gold-6454s*2"),
        ({"gpu": "none", "cpu": "epyc-9354"}, "cpu-only+epyc-9354"),
        ({"gpu": "strix-halo", "ram": "128"}, "strix-halo+ram=128"),
        ({"gpu": "rtx-4090", "link": "pcie4x8", "disk": "nvme3"}, "rtx-4090+pcie4x8+nvme3"),
        ({"machine": "rtx-3090+ryzen-9-5950x+ddr4-3200*2+ram=64"},
         "rtx-3090+ryzen-9-5950x+ddr4-3200*2+ram=64+pcie4x16+nvme4"),
    ],
)  # fmt: skip
def test_parts_are_found_by_their_names(given_: dict[str, str], text: str) -> None:
    assert machine_text(hardware(**given_)) == text


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"gpu": "rtx-3095"}, r"--gpu 'rtx-3095': unknown; nearest: .*rtx-3090"),
        ({"gpu": "rtx-3090*99"}, "--gpu 'rtx-3090\\*99': allowed: a name"),
        ({"cpu": "ryzon-5950x"}, r"--cpu 'ryzon-5950x': unknown; nearest: .*5950x"),
        ({"gpu": "rtx-3090", "memory": "ddr7-9000"}, "--memory"),
        ({"gpu": "rtx-3090", "cpu": "ryzen-5950x", "memory": "ddr5-5600"}, "does not take DDR5"),
        ({"gpu": "strix-halo", "cpu": "ryzen-5950x"}, "--cpu ryzen-5950x: .* has its own"),
        ({"gpu": "strix-halo", "ram": "4096"}, "--ram 4096: .* is sold with"),
        ({"gpu": "rtx-3090", "link": "pcie9x16"}, "--link 'pcie9x16': unknown"),
        ({"gpu": "rtx-3090", "disk": "tape"}, "--disk 'tape': unknown"),
        ({"gpu": "rtx-3090", "bandwidth": float("nan")}, "--bandwidth nan"),
        ({"gpu": "rtx-3090", "copies": 0.0}, "--copies 0"),
        ({"machine": "rtx-3090+ram=64", "gpu": "rtx-4090"}, "--gpu: --machine names the whole"),
        ({"machine": "somewhere"}, "--machine somewhere: advice needs parts"),
        ({"machine": "nowhere.yaml"}, "nowhere.yaml"),
    ],
)
def test_impossible_machines_are_refused_in_one_line(given_: dict[str, Any], said: str) -> None:
    with pytest.raises(MoeBenchError, match=said) as caught:
        hardware(**given_)
    assert "\n" not in str(caught.value)


def test_a_processor_of_a_known_family_is_kept_by_its_name() -> None:
    assert hardware(gpu="rtx-3090", cpu="EPYC 9575F").cpu == "EPYC 9575F"


@pytest.mark.parametrize(
    ("cpu", "cores", "virtual"),
    [
        ("EPYC Zen4 host, 24 vCPU", 24, True), ("2x Xeon Gold 6454S (32c/socket)", 64, False),
        ("48-core host (not named)", 48, False), ("ryzen-9-5950x", None, False),
    ],
)  # fmt: skip
def test_cores_that_a_text_says_are_counted(cpu: str, cores: int | None, virtual: bool) -> None:
    found = hardware(gpu="rtx-3090", cpu=cpu)
    assert (found.cores, found.virtual) == (cores, virtual)


def test_no_processor_has_no_cores_or_thousands() -> None:
    for cpu in ("0-core server", "99999 cores"):
        with pytest.raises(UsageError, match="allowed: 1 to 1024 cores"):
            hardware(gpu="rtx-3090", cpu=cpu)


def refusal(ask: Callable[[], object]) -> str:
    """Return the line of a refusal; "" where there is none."""
    try:
        ask()
    except MoeBenchError as error:
        return str(error)
    return ""


WORDS = st.sampled_from(["gpu", "cpu", "ram", "memory", "link", "disk", "machine"])


@settings(deadline=None, max_examples=150)
@given(option=WORDS, text=st.text(max_size=20) | st.from_regex(r"\d+ ?(x|c|GB|k)? ?rtx-\d+\*?\d*"))
def test_any_text_is_a_part_or_refused_in_one_line(option: str, text: str) -> None:
    parts = {option: text} if option == "machine" else {"gpu": "rtx-3090", option: text}
    said = refusal(lambda: machine_text(hardware(**parts)))
    assert "\n" not in said


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(context=st.text(max_size=8), prompt=st.text(max_size=8), quant=st.text(max_size=10))
def test_any_length_and_format_is_read_or_refused_in_one_line(
    context: str, prompt: str, quant: str
) -> None:
    for more in ({"context": context}, {"prompt": prompt}, {"quant": quant}):
        assert "\n" not in refusal(lambda more=more: asked(**more))


@pytest.mark.parametrize(
    ("typed", "count"),
    [("1", 1), ("32k", 32768), ("1.5K", 1536), ("1m", 2**20), ("16m", 2**24), ("16,384", 16384),
     (" 2 k ", 2048), ("16777216", 2**24)],
)  # fmt: skip
def test_numbers_of_tokens(typed: str, count: int) -> None:
    assert tokens("--prompt", typed, 1) == count
    assert tokens("--prompt", typed, count) == count
    for least, refused_ in ((count + 1, typed), (1, "16777217"), (1, "17m"), (1, "0.3k")):
        with pytest.raises(UsageError, match=rf"--prompt '{refused_}': allowed: tokens from"):
            tokens("--prompt", refused_, least)


@pytest.mark.parametrize(
    ("given_", "lengths"),
    [
        ({"context": "1k"}, (1024, 768, 256)),
        ({"context": "256"}, (256, 192, 64)),
        ({"context": "1k", "new": "600"}, (1024, 424, 600)),
        ({"prompt": "7680"}, (8192, 7680, 512)),
        ({"prompt": "7681"}, (8448, 7681, 512)),
        ({"prompt": "100", "new": "1"}, (8192, 100, 1)),
        ({"prompt": "3584", "model": "olmoe-1b-7b"}, (4096, 3584, 512)),
        ({"context": "128k"}, (131072, 130560, 512)),
    ],
)
def test_open_lengths(given_: dict[str, str], lengths: tuple[int, int, int]) -> None:
    assert asked(**given_).lengths == lengths


def test_lengths_that_do_not_fit_into_another_context() -> None:
    one = asked(prompt="2000", new="48")
    assert with_context(one, 2048) == replace(one, lengths=(2048, 2000, 48))
    with pytest.raises(UsageError, match="-c 2047: a prompt of 2,000 tokens and an answer of 48"):
        with_context(one, 2047)
    with pytest.raises(UsageError, match="--context '255': allowed: tokens from 256"):
        asked(context="255")


@pytest.mark.parametrize("bits", [1.0, 4.06, 16.0])
def test_bits_of_experts_may_be_known_better(bits: float) -> None:
    assert asked(routed=bits).bits == (bits, asked().bits.others)
    for refused_ in (LEAST * 0.99, MOST * 1.01):
        with pytest.raises(UsageError, match=r"--bits .*: allowed: bits per weight from"):
            asked(routed=refused_)


def test_the_usual_format_and_texts() -> None:
    assert (asked().quant, asked(model="mixtral-8x7b").quant) == ("mxfp4", "q4_k_m")
    assert (asked().batch, asked(batch=256).batch, asked(batch=1).batch) == (1, 256, 1)
    assert asked(lossless=True).lossless
    assert asked(quant="Q4-K-M").quant == "q4_k_m"


def test_lengths_fill_the_context_unless_they_are_typed() -> None:
    assert asked().lengths == (8192, 2048, 512)
    assert asked(context="32k").lengths == (32768, 32256, 512)
    assert asked(context="32k", prompt="8000", new="500").lengths == (32768, 8000, 500)
    assert asked(prompt="20000").lengths == (20736, 20000, 512)
    assert asked(prompt="0", new="128").lengths == (8192, 0, 128)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"context": "4k", "prompt": "4096"}, "do not fit into a context of 4,096; give --context"),
        ({"model": "mixtral-8x7b", "context": "64k"}, "mixtral-8x7b has 32,768 positions at most"),
        ({"quant": "q4_k_z"}, "unknown format 'q4_k_z'; nearest: .*q4_k"),
        ({"quant": "file"}, "--quant file: allowed with a GGUF file"),
        ({"model": "gpt-oss-210b"}, "gpt-oss"),
        ({"batch": 0}, "--batch 0"),
        ({"batch": 257}, "--batch 257"),
        ({"new": "0"}, "--tokens '0'"),
    ],
)
def test_impossible_questions_are_refused_in_one_line(more: dict[str, Any], said: str) -> None:
    with pytest.raises(MoeBenchError, match=said) as caught:
        asked(**more)
    assert "\n" not in str(caught.value)


def test_a_later_version_of_a_model_has_its_own_positions() -> None:
    assert asked(model="Qwen3-30B-A3B-2507", context="128k").lengths.context == 131072
    with pytest.raises(UsageError, match="40,960 positions"):
        asked(model="Qwen3-30B-A3B", context="128k")


# ------------------------------------------------------------------------------ GGUF files


def olmoe(folder: Path) -> Path:
    kinds = {"routed": gguf_files.Kind.Q4_K, "others": gguf_files.Kind.Q8_0}
    shape = model_shape("olmoe-1b-7b")
    return gguf_files.write_gguf(folder / "m.gguf", shape, kinds)


def sizes(shape: ModelShape) -> tuple[int, ...]:
    return shape.num_layers, shape.num_experts, shape.top_k, shape.routed_params


def test_a_gguf_file_says_shape_and_bits(tmp_path: Path) -> None:
    found = asked(model=str(olmoe(tmp_path)), context="1k")
    assert sizes(found.shape) == sizes(model_shape("olmoe-1b-7b"))
    assert found.bits.routed == pytest.approx(4.5)
    assert found.bits.others == pytest.approx(8.5, rel=0.01)
    assert found.quant == "q4_k"
    with pytest.raises(UsageError, match="4,096 positions at most"):
        asked(model=str(tmp_path / "m.gguf"), context="8k")
    named = asked(model=str(tmp_path / "m.gguf"), quant="q8_0", context="1k")
    assert (named.quant, named.bits) == ("q8_0", bits_of("q8_0"))
    assert asked(model=str(tmp_path / "m.gguf"), quant="file", context="1k") == found


def test_damaged_and_split_files_are_refused_in_one_line(tmp_path: Path) -> None:
    with olmoe(tmp_path).open("rb") as whole:  # most of it is a hole
        (tmp_path / "cut.gguf").write_bytes(whole.read(5000))
    split = tmp_path / "split"
    split.mkdir()
    gguf_files.write_gguf(split / "m.gguf", SMALL, tensors_per_part=9)
    first, second, *_ = sorted(split.glob("m-*.gguf"))
    assert sizes(asked(model=str(first), context="1k").shape) == sizes(SMALL)
    second.unlink()
    for path, said in (
        (tmp_path / "cut.gguf", "cut.gguf"), (first, "is missing"),
        (tmp_path / "none.gguf", "none.gguf"),
    ):  # fmt: skip
        with pytest.raises(CheckpointError, match=said) as caught:
            asked(model=str(path), context="1k")
        assert "\n" not in str(caught.value)
