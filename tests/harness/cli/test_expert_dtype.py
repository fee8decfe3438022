"""``--expert-dtype``: packed experts on the disk, behind a link, and as they are simulated."""

import json
from pathlib import Path
from typing import Any

import pytest

from moebench.substrate.models.catalogue import MODELS
from moebench.systems.options import build
from tests.harness.commands import call, refused
from tests.harness.tiny import write_scale

pytestmark = pytest.mark.usefixtures("tiny_models")

LAYERS, EXPERTS, HIDDEN, WIDTH = 2, 8, 64, 32

#: By hand: gate above up [64, 64], down [64, 32], in int4 with groups of 64 and of 32.
PACKED = {"int4": 64 * (32 + 4) + 64 * (16 + 4), "int8": 64 * (64 + 2) + 64 * (32 + 2)}

ON = {
    "disk": ("--machine", "local"),
    "link": ("--machine", "local", "--emulated-link", "8GB/s"),
    "simulated": ("--machine", "a6000"),
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory, tiny_models: None) -> Path:
    """A Mixtral that torch multiplies packed."""
    config = json.loads((MODELS / "mixtral-8x7b.json").read_text())
    folder = tmp_path_factory.mktemp("weights") / "mixtral"
    widths = {"hidden_size": HIDDEN, "intermediate_size": WIDTH}
    write_scale(folder, config | {"num_hidden_layers": LAYERS}, widths)
    return folder


def ran(weights: Path, store: Path, *arguments: str) -> dict[str, Any]:
    called = call(
        "run", "--system", "moe-ondemand", "--weights", weights, "--workload", "arithmetic",
        "--prompts", "2", "--new-tokens", "6", "--capacity", "0.5", "--no-interval", "--json",
        "--store", store, *arguments,
    )  # fmt: skip
    assert called.code == 0, called.err
    document: dict[str, Any] = called.json
    return document


@pytest.mark.parametrize("where", ON)
@pytest.mark.parametrize("stored_as", PACKED)
def test_bytes_are_packed_and_the_approximation_shows(
    stored_as: str, where: str, weights: Path, tmp_path: Path
) -> None:
    document = ran(weights, tmp_path, *ON[where], "--expert-dtype", stored_as)
    size, slots = PACKED[stored_as], LAYERS * EXPERTS // 2
    assert document["memory"]["expert_bytes"] == size
    assert document["memory"]["slot_bytes"] == slots * size
    moved = document["metrics"]["bytes_disk" if where == "disk" else "bytes_h2d"]
    assert moved > 0
    assert moved % size == 0
    assert document["accuracy"]["kl"] > 0
    assert not document["lossless"]
    assert any(stored_as in note for note in document["notes"])
    assert not any("not quantised" in note for note in document["notes"])


@pytest.mark.parametrize("where", ["disk", "simulated"])
def test_int4_is_farther_from_full_precision_than_int8(
    where: str, weights: Path, tmp_path: Path
) -> None:
    four, eight = (
        ran(weights, tmp_path, *ON[where], "--expert-dtype", stored_as)["accuracy"]["kl"]
        for stored_as in ("int4", "int8")
    )
    assert four > 3 * eight
    exact = ran(weights, tmp_path, *ON[where])
    assert exact["accuracy"]["kl"] < eight
    assert exact["lossless"]


def test_experts_that_are_only_charged_in_fewer_bits_are_no_less_lossy(
    weights: Path, tmp_path: Path
) -> None:
    def lossless(*arguments: str) -> bool:
        document = ran(weights, tmp_path, *ON["simulated"], *arguments)
        assert document["accuracy"]["agreement"] == 1, "the mathematics is not quantised"
        return bool(document["lossless"])

    for stored_as in ("2bit", "4bit", "4bit-g64"):
        assert not lossless("--set", f"expert_precision={stored_as}")
    assert lossless("--set", "expert_precision=fp32")
    assert lossless("--precision", "4bit", "--set", "expert_precision=4bit")


def test_a_system_that_computes_on_unfinished_copies_is_lossy_at_any_alpha() -> None:
    for variant, exact in (("published", True), ("shipped", False)):
        assert build("smoe", {"alpha": "0"}, variant).lossless is exact


def test_imported_weights_are_quantised_beside_their_records(weights: Path, tmp_path: Path) -> None:
    called = call("models", "import", weights, "--dtype", "fp32", "--out", tmp_path / "imported")
    assert called.code == 0, called.err
    arguments = (*ON["disk"], "--expert-dtype", "int4")
    document = ran(tmp_path / "imported", tmp_path, *arguments)
    assert document["memory"]["expert_bytes"] == PACKED["int4"]
    assert document["accuracy"]["kl"] == ran(weights, tmp_path, *arguments)["accuracy"]["kl"]
    files = [file.name for file in (tmp_path / "experts").iterdir()]
    assert len(files) == 2
    assert all("-int4-" in name and "torch" in name for name in files)  # packed for this processor


# ----------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--setting", "S3", "--expert-dtype", "int3"), "--expert-dtype int3: "),
        (
            ("--setting", "S3", "--expert-dtype", "int4", "--set", "expert_precision=2bit"),
            "--expert-dtype int4 and expert_precision=2bit: both say what experts are stored as",
        ),
        (
            ("--model", "gpt-oss-20b", "--machine", "a6000", "--routing", "drawn",
             "--expert-dtype", "int4"),
            "--expert-dtype int4: experts of family gpt_oss have biases",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    assert said in refused("run", "--system", "moe-ondemand", *arguments)


def test_a_package_has_its_own_weights() -> None:
    line = refused(
        "run", "--system", "native-llamacpp", "--setting", "S3", "--machine", "local",
        "--expert-dtype", "int4",
    )  # fmt: skip
    assert line.endswith("--expert-dtype and --system native-llamacpp: a package runs by itself")
