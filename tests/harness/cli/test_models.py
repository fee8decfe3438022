"""``moebench models``: list, train, verify and import, on scale models that learnt nothing."""

import errno
import functools
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from moebench.harness.scale import files, tables, training, verify
from moebench.harness.scale.text import TRAINING_SETS, train_tokenizer, training_text
from moebench.harness.scale.trainable import TrainableDecoder
from moebench.harness.scale.verify import chance_of_mentioned, differences
from moebench.harness.scale.widths import SCALE_WIDTHS, scale_config
from moebench.substrate.models.catalogue import SCALE_FILES, model_shape, scale_names, scale_path
from moebench.substrate.models.config import read_shape, shape_of
from moebench.workloads.catalogue import workload
from moebench.workloads.example import Example
from tests.harness.commands import call, refused
from tests.harness.tiny import LAYERS

pytestmark = pytest.mark.usefixtures("tiny_models")

#: Has a recipe and a tiny shape, and no scale model in the tiny catalogue.
NAME = "phi-3.5-moe"
#: Where one's own model of this name goes, shipped or not.
OWN = f".moebench/models/{NAME}"


def make_model(path: Path, **changes: Any) -> Path:
    """An untrained checkpoint with the widths of a scale model, fp32."""
    config = {**scale_config(NAME), **changes}
    model = TrainableDecoder(shape_of(config), seed=0)
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    tensors = {name: tensor.float() for name, tensor in model.stored().items()}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    train_tokenizer(["Where is the cup?", "Answer: shop"], 300).save(str(path / "tokenizer.json"))
    return path


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As little measurement as there can be."""
    monkeypatch.setattr(verify, "QUESTIONS", 3)
    monkeypatch.setattr(verify, "QUICK", 2)
    monkeypatch.setattr(verify, "WINDOWS", 1)
    monkeypatch.setattr(verify, "WINDOW", 16)
    monkeypatch.setattr(tables, "DOCS", Path("nowhere.md"))
    brief = {"max_new_tokens": 4}
    monkeypatch.setattr(verify, "workload", lambda name: workload(name).model_copy(update=brief))


# --------------------------------------------------------------------------- list


@pytest.mark.usefixtures("shipped_models")
def test_list_has_every_recipe_with_its_original_s_topology() -> None:
    rows = call("models", "list", "--json").json
    assert [row["model"] for row in rows] == sorted(SCALE_WIDTHS)
    for row in rows:
        full = model_shape(row["model"])
        assert (row["layers"], row["experts"]) == (full.num_layers, full.num_experts)
        assert row["top_k"] == full.top_k
        assert (row["shared"] is None) == (full.shared_width == 0)
        assert (row["weights"] == "shipped") == (row["model"] in scale_names())
        assert row["megabytes"] < 13
        if row["weights"]:
            size = (scale_path(row["model"]) / "model.safetensors").stat().st_size
            assert row["megabytes"] == pytest.approx(size / 1e6, abs=0.05)
    lines = call("models", "list").out.splitlines()
    assert len(lines) == 1 + len(rows)


# --------------------------------------------------------------------------- import


def test_import_keeps_the_weights_and_writes_a_manifest(here: Path) -> None:
    source = make_model(here / NAME)
    called = call("models", "import", source, "--scale", NAME)
    assert called.code == 0
    out = here / OWN
    assert f"--weights .moebench/models/{NAME}" in called.err
    assert sorted(f.name for f in out.iterdir()) == sorted(SCALE_FILES)
    assert sum(f.stat().st_size for f in out.iterdir()) < 13e6
    with (
        safe_open(source / "model.safetensors", "pt") as given,
        safe_open(out / "model.safetensors", "pt") as taken,
    ):
        assert sorted(given.keys()) == sorted(taken.keys())
        for key in given.keys():  # noqa: SIM118
            assert torch.equal(given.get_tensor(key).half(), taken.get_tensor(key)), key
    entry = json.loads((out.parent / "manifest.json").read_text())[NAME]
    assert set(entry["files"]) == set(SCALE_FILES)
    assert entry["parameters"] == read_shape(out / "config.json").total_params
    assert entry["measured"] is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts_per_tok": 1}, "top_k is 1, the full-size model has 2"),
        ({"num_hidden_layers": 3}, "num_layers is 3, the full-size model has 4"),
        ({"num_local_experts": 4}, "num_experts is 4"),
        ({"tie_word_embeddings": True}, "tied_head is True"),
        ({"vocab_size": 256}, "tokenizer.json holds token"),
        ({"intermediate_size": 1100}, "a scale model has at most 13 MB"),
    ],
)
def test_import_refuses_in_one_line(here: Path, changes: dict[str, Any], message: str) -> None:
    called = call("models", "import", make_model(here / NAME, **changes), "--scale", NAME)
    assert called.code == 2
    assert message in called.err
    assert len(called.err.splitlines()) == 1
    assert not (here / ".moebench").exists()


def test_import_of_what_is_no_checkpoint(here: Path) -> None:
    (here / "model").mkdir()
    for folder, message in (("model", "config.json"), ("none", "no such directory")):
        called = call("models", "import", folder, "--scale", NAME)
        assert (called.code, len(called.err.splitlines())) == (2, 1)
        assert message in called.err
    source = make_model(here / NAME)
    (source / "tokenizer.json").write_text("{}")
    called = call("models", "import", source, "--scale", NAME)
    assert (called.code, len(called.err.splitlines())) == (2, 1)
    assert "not a tokenizer" in called.err


# --------------------------------------------------------------------------- verify


@pytest.mark.usefixtures("small")
def test_verify_measures_writes_and_compares(here: Path) -> None:
    assert call("models", "import", make_model(here / NAME), "--scale", NAME).code == 0
    first = call("models", "verify", OWN)
    assert first.code == 0
    assert "the manifest holds no measurement" in first.err
    assert f"moebench models verify {OWN} --write" in first.err
    assert "prefill/decode similarity" in first.out
    assert f"{NAME}, exercises: " in first.out
    assert "off of" in first.out

    written = call("models", "verify", OWN, "--write", "--json")
    assert written.code == 0
    measured = written.json[NAME]["measured"]
    judged = written.json[NAME]["targets"]["exercises"]
    assert (
        judged["lag_overlap.1"]["value"] == measured["statistics"]["exercises"]["lag_overlap"]["1"]
    )
    assert judged["lag_overlap.1"]["judgement"] in ("in range", "near", "off")
    assert set(measured["accuracy"]) == {
        "arithmetic", "equations", "facts", "inflection", "passages"
    }  # fmt: skip
    for family in measured["accuracy"].values():
        assert family["n"] == len(family["answers"]) == 3
        assert family["margin"] > 0
        assert 0 <= family["unsure"] <= 1
    statistics = measured["statistics"]["exercises"]
    assert statistics["tokens"] == {"prefill": 5 * 8, "decode": 5 * 8}
    assert len(statistics["prediction_by_layer"]["gate"]) == LAYERS

    again = call("models", "verify", OWN, "--quick", "--json")
    assert again.code == 0
    assert again.json[NAME]["differences"] == []

    manifest = here / ".moebench" / "models" / "manifest.json"
    entries = json.loads(manifest.read_text())
    entries[NAME]["measured"]["statistics"]["exercises"]["popularity"]["gini"] += 0.1
    manifest.write_text(json.dumps(entries))
    moved = call("models", "verify", NAME)  # one's own by its name, which does not ship
    assert moved.code == 1
    assert "exercises: popularity.gini is" in moved.err


@pytest.mark.usefixtures("small")
def test_verify_adds_prose_from_a_data_folder(here: Path) -> None:
    assert call("models", "import", make_model(here / NAME), "--scale", NAME).code == 0
    data = here / "data"
    (data / "corpus").mkdir(parents=True)
    missing = call("models", "verify", OWN, "--data-dir", data, "--write")
    assert (missing.code, "statistics of prose need it" in missing.err) == (2, True)
    (data / "corpus" / "wikitext2_test.txt").write_text("Where is the cup? " * 40)
    found = call("models", "verify", OWN, "--data-dir", data, "--write", "--json")
    assert set(found.json[NAME]["measured"]["statistics"]) == {"exercises", "wikitext2_test"}


@pytest.mark.parametrize("name", SCALE_FILES)
def test_a_file_that_differs_from_the_manifest_is_one_line(here: Path, name: str) -> None:
    assert call("models", "import", make_model(here / NAME), "--scale", NAME).code == 0
    file = here / OWN / name
    file.write_bytes(file.read_bytes() + b" ")
    called = call("models", "verify", OWN)
    assert (called.code, len(called.err.splitlines())) == (2, 1)
    assert f"{name}: its SHA-256 is" in called.err


def test_bad_requests_are_one_line(here: Path) -> None:
    (here / ".moebench" / "models").mkdir(parents=True)
    for arguments, message in (
        (("verify",), "give one name or folder, or --all"),
        (("verify", NAME, "--all"), "give one name or folder, or --all"),
        (("verify", "nonsense"), "unknown scale model 'nonsense'"),
        (("verify", "no/sense"), "no/sense: no scale model"),
        (("verify", "--all", "--write", "--quick"), "leave --quick out"),
        (("train", "nonsense", "--data-dir", "."), "unknown scale model 'nonsense'"),
        (("train", NAME), "give --data-dir"),
        (("train", NAME, "--data-dir", "none"), "--data-dir none: no such folder"),
        (("train", NAME, "--data-dir", "."), "corpus: holds no prose"),
        (("train", NAME, "--data-dir", ".", "--tokens", "0"), "--tokens"),
        (("train", NAME, "--data-dir", ".", "--balance", "inf"), "--balance inf: expected"),
    ):
        assert message in refused("models", *arguments)
    (here / ".moebench" / "models" / "manifest.json").write_text("[]")
    make_model(here / OWN)
    assert "not a manifest" in call("models", "verify", OWN).err


def test_differences_stay_silent_within_the_tolerances() -> None:
    def document(answers: str, gini: float | None) -> dict[str, Any]:
        family = {"n": len(answers), "answers": answers}
        return {"accuracy": {"facts": family}, "statistics": {"exercises": {"l": [1.0, gini]}}}

    recorded = document("1" * 100, 0.5)
    assert differences(document("1" * 95 + "0" * 5, 0.515), recorded) == []
    assert differences(document("1" * 30 + "0" * 2, 0.5), recorded) == []
    assert differences(document("1" * 29 + "0" * 3, 0.5), recorded) == [
        "accuracy of facts: 3 of 32 answers turned"
    ]
    more = document("1" * 100, 0.5)
    more["accuracy"]["arithmetic"] = {"n": 2, "answers": "11"}
    assert differences(more, recorded) == ["accuracy of arithmetic: not in the manifest"]
    assert differences(document("1" * 94 + "0" * 6, 0.5), recorded) == [
        "accuracy of facts: 6 of 100 answers turned"
    ]
    assert differences(document("1" * 100, 0.53), recorded) == [
        "exercises: l[1] is 0.53, the manifest says 0.5"
    ]
    assert len(differences(document("1" * 100, None), recorded)) == 1


def test_chance_of_naming_what_was_mentioned() -> None:
    def asked(prompt: str, answer: str) -> Example:
        return Example(id=answer, prompt=prompt, choices=None, answer=answer)

    # Two places of the set in each question: a guess is right half of the time.
    two = [asked("Mia goes to the shop, Tom to the park.", place) for place in ("shop", "park")]
    assert chance_of_mentioned(two) == 0.5
    # Always "shop" is right in three of four.
    assert chance_of_mentioned([two[0]] * 3 + [two[1]]) == 0.75


def test_docs_tables_come_between_their_markers(tmp_path: Path) -> None:
    docs = tmp_path / "models.md"
    docs.write_text("before\n<!-- verify -->\nearlier tables\n<!-- /verify -->\nafter\n")
    tables.write_docs(docs)
    text = docs.read_text()
    assert text.startswith("before\n<!-- verify -->\n")
    assert text.endswith("\n<!-- /verify -->\nafter\n")
    assert "earlier tables" not in text


# --------------------------------------------------------------------------- train


@pytest.mark.slow
def test_train_from_a_data_folder_and_use_what_it_wrote(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = here / "data"
    (data / "corpus").mkdir(parents=True)
    letters = random.Random(0).choices("abcdefghij    \n", k=40_000)
    (data / "corpus" / "book.txt").write_text("".join(letters))
    for name in TRAINING_SETS:
        (data / name).mkdir()
        record = {"id": name, "prompt": "Which?", "choices": ["x", "y"], "answer": 1}
        (data / name / "train.jsonl").write_text(json.dumps(record) + "\n")
    command = ("models", "train", NAME, "--data-dir", data, "--tokens", "4096")
    # The same text for each command that follows.
    monkeypatch.setattr(training, "training_text", functools.cache(training_text))

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(files, "save_file", full)
        called = call(*command)
    assert called.code == 2
    assert "No space left on device" in called.err.splitlines()[-1]

    called = call(*command)
    assert called.code == 0, called.err
    out = Path(OWN)
    assert "step 2/2 loss" in called.err
    assert f"moebench run --system smoe --model {NAME} --weights {out}" in called.err
    assert set(SCALE_FILES) < {file.name for file in out.iterdir()}
    trained = json.loads((out / "training.json").read_text())
    assert trained["step"] == trained["steps"] == 2
    listed = {row["model"]: row for row in call("models", "list", "--json").json}
    assert listed[NAME]["weights"] in ("shipped", str(out))
    ran = call(
        "run", "--system", "smoe", "--model", NAME, "--weights", out, "--machine", "a6000",
        "--workload", "arithmetic", "--prompts", "1", "--new-tokens", "2", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
