"""`--quant`, GGUF files as models, and routing drawn by the law, on the shipped catalogue."""

from pathlib import Path
from typing import Any

import gguf
import pytest

import moebench
from moebench.harness.one_run import prepare
from moebench.harness.run.interval import effect_of_law
from moebench.harness.run.rules import resolve
from moebench.harness.sweep.plan import cells_from_file
from moebench.results.spec import RunSpec
from moebench.substrate.models.bits import bits_of, host_rate
from moebench.substrate.models.catalogue import find_shape
from tests.harness.commands import call, refused
from tests.substrate.models.gguf_files import write_gguf

Kind = gguf.GGMLQuantizationType

MACHINE = "rtx-3090+ryzen-9-5950x"
SHORT: dict[str, Any] = {"prompts": 1, "new_tokens": 3}
RUN = ("run", "--prompts", "1", "--new-tokens", "3", "--software", "ggml", "--json", "--system")


def spec_of(system: str = "llamacpp", model: str = "gpt-oss-120b", **given: Any) -> RunSpec:
    return resolve(None, system=system, model=model, **{"machine": MACHINE, **SHORT, **given})


def document(system: str, model: str | Path, machine: str, *more: str) -> dict[str, Any]:
    called = call(*RUN, system, "--model", model, "--machine", machine, *more)
    assert called.code == 0, called.err
    found: dict[str, Any] = called.json
    return found


# ------------------------------------------------------------------------- routing by the law


@pytest.mark.slow
def test_a_model_without_scale_model_is_drawn_and_says_so() -> None:
    spec = spec_of()
    assert spec.routing == "drawn"
    assert spec == spec_of(routing="drawn")
    assert spec_of(model="olmoe-1b-7b").routing == "model"
    assert spec_of(scoring="generation").routing == "model", "refused later: it needs a live run"
    found = document("moe-ondemand", "gpt-oss-20b", "a6000")
    assert found["spec"]["routing"] == "drawn"
    assert "routing" not in found["interval"], "gpt-oss-20b was recorded"


@pytest.mark.slow
def test_the_interval_has_the_ends_of_the_law() -> None:
    found = document("moe-ondemand", "qwen3-next-80b-a3b", MACHINE, "--quant", "q4_k_m")
    assert any("eight recorded families" in note for note in found["notes"])
    low, high = found["interval"]["routing"]["tpot_ms"]
    assert found["interval"]["routing"].keys() == {"tpot_ms", "ttft_ms"}
    assert low > 0 > high, "more distinct experts and less repetition take longer"


def test_the_law_moves_only_routing_that_it_drew(tmp_path: Path) -> None:
    assert effect_of_law(prepare(spec_of(model="olmoe-1b-7b"), None), tmp_path) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("system", "lacks"),
    [("finemoe", "holds no embeddings"), ("promoe", "holds no hidden states"),
     ("hybrimoe", "holds predictions of kind gate 1 MoE layer(s) ahead")],
)  # fmt: skip
def test_systems_that_read_more_than_routing_are_refused(system: str, lacks: str) -> None:
    line = refused("run", "--system", system, "--model", "gpt-oss-120b", "--machine", MACHINE)
    assert lacks in line
    assert "--weights DIR" in line


# ------------------------------------------------------------------------- bits


@pytest.mark.slow
def test_a_format_prices_experts_and_all_other_weights() -> None:
    shape, bits = find_shape("gpt-oss-120b"), bits_of("mxfp4")
    found = document("llamacpp", "gpt-oss-120b", f"{MACHINE}+ram=96", "--quant", "MXFP4")
    assert found["spec"]["quant"] == "mxfp4"
    expert = round(shape.expert_params * bits.routed / 8)
    assert found["memory"]["expert_bytes"] == expert
    common = round(shape.common_params * bits.others / 8)
    placed = expert * found["spec"]["slots"]
    assert found["metrics"]["peak_device_bytes"] >= common + placed
    assert any("4.25 bits each in routed experts, 8.5 in all" in n for n in found["notes"])
    slower = document("llamacpp", "gpt-oss-120b", f"{MACHINE}+ram=96", "--quant", "q8_0")
    assert slower["metrics"]["tpot_ms"]["mean"] > 1.5 * found["metrics"]["tpot_ms"]["mean"]
    assert slower["run_id"] != found["run_id"]


def test_rates_of_formats_on_a_core() -> None:
    names = ("q4_k_m", "mxfp4", "iq2_xs", "iq3_m", "iq4_xs", "q8_0")
    assert [host_rate(name) for name in names] == [1, 0.65, 0.5, 0.5, 1, 1]


def test_specs_without_a_format_are_as_before() -> None:
    """A field that is left out changes neither the document's spec nor the run's id."""
    spec = spec_of()
    assert "quant" not in spec.model_dump()
    session, other = (prepare(one, None) for one in (spec, spec_of(quant="mxfp4")))
    assert "bits" not in session.hashes
    assert session.run_id != other.run_id


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--quant", "q4km"), "unknown format of --quant 'q4km'; nearest: q4_k_m"),
        (("--quant", "q4_0", "--precision", "bf16"), "--quant q4_0 and --precision bf16: both say"),
        (("--quant", "q4_0", "--expert-dtype", "int8"), "--quant q4_0 and --expert-dtype int8"),
        (("--quant", "file"), "gpt-oss-120b is no GGUF file; give --model FILE.gguf"),
        (("--quant", "q4_0", "--machine", "local"), "--quant q4_0 and --machine local"),
    ],
)
def test_impossible_formats_are_one_line(more: tuple[str, ...], says: str) -> None:
    machine = () if "--machine" in more else ("--machine", MACHINE)
    line = refused("run", "--system", "llamacpp", "--model", "gpt-oss-120b", *machine, *more)
    assert says in line


def test_a_system_with_its_own_precision_refuses_a_format() -> None:
    line = refused(
        *RUN, "mixtral-offloading", "--model", "mixtral-8x7b", "--machine", MACHINE, "--quant",
        "q4_k_m", "--set", "expert_precision=2bit",
    )  # fmt: skip
    assert "--quant q4_k_m and expert_precision=2bit: both say" in line


@pytest.mark.slow
def test_sweeps_and_python_take_formats() -> None:
    Path("s.yaml").write_text(
        f"common: {{system: llamacpp, model: gpt-oss-120b, machine: {MACHINE}}}\n"
        "product: {quant: [mxfp4, q4_k_m]}\n"
    )
    assert [one.quant for one in cells_from_file(Path("s.yaml"), None)] == ["mxfp4", "q4_k_m"]
    done = moebench.run(
        "llamacpp", model="olmoe-1b-7b", machine=MACHINE, quant="Q4-K-M", prompts=1, new_tokens=2
    )
    (found,) = done.documents
    assert (found["spec"]["quant"], found["spec"]["routing"]) == ("q4_k_m", "model")
    assert found["accuracy"]["agreement"] == 1, "the model computes as before"


# ------------------------------------------------------------------------- GGUF files


@pytest.mark.slow
def test_a_gguf_file_is_a_model_with_its_own_bits(tmp_path: Path) -> None:
    """The header has the real size: 48 layers of 128 experts, 30 B weights.  Its data is a hole."""
    file, shape = tmp_path / "m.gguf", find_shape("qwen3-30b-a3b")
    write_gguf(file, shape, {"routed": Kind.Q4_K, "others": Kind.Q8_0})
    found = document("llamacpp", file, MACHINE)
    assert (found["spec"]["quant"], found["spec"]["routing"]) == ("file", "drawn")
    assert found["memory"]["expert_bytes"] == round(shape.expert_params * 4.5 / 8)
    assert any(f"{file}: 4.5 bits each in routed experts, 8.5" in n for n in found["notes"])
    named = document("llamacpp", file, MACHINE, "--quant", "q8_0")
    assert named["memory"]["expert_bytes"] == round(shape.expert_params * 8.5 / 8)
    plain = document("llamacpp", file, MACHINE, "--precision", "bf16")
    assert plain["memory"]["expert_bytes"] == shape.expert_params * 2


def test_files_that_are_no_models_are_one_line(tmp_path: Path) -> None:
    shape = find_shape("qwen3-30b-a3b")
    write_gguf(tmp_path / "m.gguf", shape, tensors_per_part=400)
    part, *others = sorted(tmp_path.glob("m-*.gguf"))
    others[-1].unlink()
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(part.read_bytes()[:100])
    for file, says in ((part, "is missing (1 of "), (broken, "ends inside its header"),
                       (tmp_path / "none.gguf", "none.gguf")):  # fmt: skip
        line = refused("run", "--system", "llamacpp", "--model", file, "--machine", MACHINE)
        assert says in line


# ------------------------------------------------------------------------- memory


@pytest.mark.slow
@pytest.mark.parametrize(("ram", "on_disk"), [(32, True), (48, False), (96, False)])
def test_a_mapped_file_needs_host_memory_for_what_the_device_lacks(ram: int, on_disk: bool) -> None:
    """61 GB of experts, of which the card keeps 20 GB: 48 GiB hold the rest, 32 GiB do not."""
    found = document("llamacpp", "gpt-oss-120b", f"{MACHINE}+ram={ram}", "--quant", "mxfp4")
    said = [note for note in found["notes"] if "paged in from the disk" in note]
    assert bool(said) == on_disk


@pytest.mark.slow
def test_a_cache_needs_host_memory_for_all_experts() -> None:
    found = document("moe-ondemand", "gpt-oss-120b", f"{MACHINE}+ram=48", "--quant", "mxfp4")
    assert any("experts are on the disk" in note for note in found["notes"])
    assert not any("mapped" in note for note in found["notes"])


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["cpu-only+ryzen-9-7950x+ram=96", "strix-halo+ram=128"])
def test_one_pool_and_a_processor_alone_hold_all_experts(machine: str) -> None:
    found = document("llamacpp", "gpt-oss-120b", machine, "--quant", "mxfp4")
    assert found["spec"]["cache_ratio"] == 1
    assert found["metrics"]["tpot_ms"]["mean"] > 0
