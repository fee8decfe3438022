"""A folder of weights is all that a run needs: every family, from the command line."""

from pathlib import Path

import pytest

from moebench.harness.scale.text import train_tokenizer
from tests.harness.commands import call, refused
from tests.substrate.models.checkpoints import FAMILIES, make_checkpoint

VOCABULARY = 300


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each family with a tokenizer; every other one is sharded."""
    root = tmp_path_factory.mktemp("families")
    tokenizer = train_tokenizer(["Where is the cup?", "Answer: shop"], VOCABULARY)
    folders = {}
    for n, family in enumerate(FAMILIES):
        sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": 2048}
        folders[family] = make_checkpoint(root / family, family, sharded=n % 2 > 0, **sizes)
        tokenizer.save(str(folders[family] / "tokenizer.json"))
    return folders


RUN = (
    "--workload", "arithmetic", "--prompts", "1", "--new-tokens", "4", "--capacity", "0.5",
    "--no-interval", "--json",
)  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_lossless_system_writes_what_the_model_does(
    family: str, folders: dict[str, Path]
) -> None:
    weights = ("--weights", folders[family])
    called = call("run", "--system", "moe-ondemand", *weights, "--machine", "a6000", *RUN)
    assert called.code == 0, called.err
    document = called.json
    assert document["accuracy"]["agreement"] == 1.0
    assert document["accuracy"]["kl"] == pytest.approx(0, abs=1e-6)
    assert document["metrics"]["tpot_ms"]["mean"] > 0
    assert document["spec"]["model"] == (folders[family] / "config.json").as_posix()


@pytest.mark.parametrize("family", ["gpt_oss", "llama4_text", "deepseek_v2"])
def test_slots_of_this_computer_hold_every_kind_of_record(
    family: str, folders: dict[str, Path]
) -> None:
    """Biases travel with their expert, from the disk and from memory behind a link."""
    weights = ("--weights", folders[family], "--machine", "local")
    for link in ((), ("--emulated-link", "4GB/s")):
        called = call("run", "--system", "smoe", "--set", "route=exact", *weights, *link, *RUN)
        assert called.code == 0, called.err
        assert called.json["accuracy"]["agreement"] == 1.0


def test_imported_weights_run_like_those_they_were_made_from(folders: dict[str, Path]) -> None:
    source = folders["gpt_oss"]
    called = call("models", "import", source)
    assert called.code == 0, called.err
    out = Path(".moebench/weights/gpt_oss")
    assert f"--weights {out} --machine local" in called.err
    for machine in ("local", "a6000"):
        runs = [
            call("run", "--system", "moe-ondemand", "--weights", w, "--machine", machine, *RUN).json
            for w in (source, out)
        ]
        assert [run["accuracy"]["agreement"] for run in runs] == [1.0, 1.0]
        assert runs[0]["metrics"]["bytes_disk"] == runs[1]["metrics"]["bytes_disk"]
    # One store was built: that of the folder which was not imported.
    assert len(list(Path(".moebench").glob("**/experts/*.bin"))) == 1
    assert "24 records are what was imported" in call("models", "verify", out).err
    with (out / "experts.bin").open("r+b") as file:
        file.write(b"damage")
    line = refused("models", "verify", out)
    assert "SHA-256 of layer 0 expert 0 differs" in line


def test_an_import_s_precision_is_one_of_three(folders: dict[str, Path]) -> None:
    line = refused("models", "import", folders["olmoe"], "--dtype", "fp8")
    assert "--dtype fp8: allowed: bf16, fp16, fp32" in line
    line = refused(
        "models", "import", folders["olmoe"], "--dtype", "bf16", "--scale", "olmoe-1b-7b"
    )
    assert "--dtype and --scale" in line


def test_an_unknown_family_is_refused_in_one_line(folders: dict[str, Path], here: Path) -> None:
    (here / "config.json").write_text('{"model_type": "gpt2"}')
    line = refused("run", "--system", "smoe", "--weights", here, "--machine", "a6000")
    assert "model_type 'gpt2' is not supported" in line
    assert "allowed: deepseek, deepseek_v2, glm4_moe, gpt_oss, llama4_text, mixtral" in line
