"""``moebench models``: list, train, verify and import, on scale models that learnt nothing."""

import contextlib
import errno
import functools
import io
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.text import Text
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from moebench.harness import hub
from moebench.harness.cli import models
from moebench.harness.scale import files, tables, training, verify
from moebench.harness.scale.checkpoint import Progress
from moebench.harness.scale.recipe import LOCALITY, TrainingRecipe
from moebench.harness.scale.text import TRAINING_SETS, train_tokenizer, training_text
from moebench.harness.scale.trainable import TrainableDecoder
from moebench.harness.scale.verify import chance_of_mentioned, differences
from moebench.harness.scale.widths import SCALE_WIDTHS, scale_config
from moebench.substrate.errors import InputError, UnknownNameError, UsageError
from moebench.substrate.models import imported
from moebench.substrate.models.catalogue import SCALE_FILES, model_shape, scale_names, scale_path
from moebench.substrate.models.config import read_shape, shape_of
from moebench.workloads.catalogue import workload
from moebench.workloads.example import Example
from tests.harness.commands import call, refused
from tests.harness.tiny import LAYERS, NAMES

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


TOO_LARGE = " MB in fp16; a scale model has at most 13 MB: choose smaller widths"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts_per_tok": 1}, "top_k is 1, the full-size model has 2"),
        ({"num_hidden_layers": 3}, "num_layers is 3, the full-size model has 4"),
        ({"num_local_experts": 4}, "num_experts is 4"),
        ({"tie_word_embeddings": True}, "tied_head is True"),
        ({"vocab_size": 256}, "tokenizer.json holds token"),
        ({"intermediate_size": 1100}, TOO_LARGE),
    ],
)
def test_import_refuses_in_one_line(here: Path, changes: dict[str, Any], message: str) -> None:
    called = call("models", "import", make_model(here / NAME, **changes), "--scale", NAME)
    assert called.code == 2
    assert message in called.err
    assert len(called.err.splitlines()) == 1
    assert not (here / ".moebench").exists()
    if message == TOO_LARGE:
        parameters = read_shape(here / NAME / "config.json").total_params
        assert called.err == f"moebench: {here / NAME}: {2e-6 * parameters:.1f}{TOO_LARGE}\n"


def test_import_of_weights_that_fp16_cannot_hold_is_refused(here: Path) -> None:
    source = make_model(here / NAME)
    file = source / "model.safetensors"
    tensors = {name: tensor.float() for name, tensor in load_file(file).items()}
    name = next(iter(sorted(tensors)))
    tensors[name].view(-1)[3] = 1e6  # above 65,504
    save_file(tensors, file, {"format": "pt"})
    line = refused("models", "import", source, "--scale", NAME)
    assert f"tensor {name} is not finite in fp16" in line
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


# --------------------------------------------------------------------------- messages


def test_a_model_is_verified_by_name_or_folder(here: Path) -> None:
    shipped = scale_names()
    assert models._paths(None, True) == [scale_path(name) for name in shipped]
    assert models._paths(shipped[0], False) == [scale_path(shipped[0])]
    (here / OWN).mkdir(parents=True)
    for target in (NAME, OWN):
        with pytest.raises(InputError if "/" in target else UnknownNameError):
            models._paths(target, False)
    (here / OWN / "config.json").write_text("{}")
    assert models._paths(NAME, False) == models._paths(OWN, False) == [Path(OWN)]
    own = here / ".moebench/models" / shipped[0]
    own.mkdir()
    (own / "config.json").write_text("{}")
    assert models._paths(shipped[0], False) == [scale_path(shipped[0])]
    assert models._paths(f".moebench/models/{shipped[0]}", False) == [own.relative_to(here)]
    for target, every in ((None, False), (NAME, True)):
        with pytest.raises(UsageError, match="give one name or folder, or --all"):
            models._paths(target, every)


def test_several_models_are_verified_and_one_that_differs_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Any] = []
    written: list[Any] = []

    def verified(path: Path, *what: Any) -> dict[str, Any]:
        given.append((path.name, *what))
        return {"differences": ["x"] if path.name == NAMES[0] else []}

    monkeypatch.setattr(models, "_verify", verified)
    monkeypatch.setattr(tables, "show", lambda path, document: written.append(path.name))
    monkeypatch.setattr(tables, "write_docs", lambda docs: written.append(docs))
    called = call("models", "verify", "--all", "--json")
    assert (called.code, list(called.json)) == (1, NAMES)
    assert given == [(name, None, False, False) for name in NAMES]
    assert written == []
    assert call("models", "verify", NAMES[1], "--write", "--data-dir", ".").code == 0
    assert given[-1] == (NAMES[1], Path(), False, True)
    assert written == [NAMES[1], tables.DOCS]
    assert call("models", "verify", NAMES[0], "--quick").code == 1
    assert given[-1] == (NAMES[0], None, True, False)


def test_a_model_that_is_not_there_has_dashes() -> None:
    header, *rows = [line.split("\t") for line in call("models", "list").out.splitlines()]
    (row,) = [dict(zip(header, row, strict=True)) for row in rows if row[0] == NAME]
    assert (row["weights"], row["held_out_loss"], row["accuracy"]) == ("-", "-", "-")
    assert row["shared"] == "-"


def test_a_model_of_ones_own_is_listed_with_its_measurement(here: Path) -> None:
    assert call("models", "import", make_model(here / NAME), "--scale", NAME).code == 0
    manifest = here / ".moebench/models/manifest.json"
    entries = json.loads(manifest.read_text())
    entries[NAME]["training"] = {"held_out_loss": 2.5}
    scores = {"facts": {"score": 0.504}, "passages": {"score": 0.25}}
    entries[NAME]["measured"] = {"accuracy": scores}
    manifest.write_text(json.dumps(entries))
    (row,) = [r for r in call("models", "list", "--json").json if r["model"] == NAME]
    size = (here / OWN / "model.safetensors").stat().st_size
    shape = read_shape(here / OWN / "config.json")
    assert row["weights"] == OWN
    assert row["megabytes"] == round(size / 1e6, 1)
    assert row["params_m"] == round(shape.total_params / 1e6, 2)
    assert row["moe_layers"] == len(shape.moe_layers)
    assert row["accuracy"] == "facts 50%, passages 25%"
    assert row["held_out_loss"] == 2.5


def test_an_imported_scale_model_is_said_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"bytes": 12_345_678, "parameters": 6_000_000}
    given: list[Any] = []
    monkeypatch.setattr(files, "import_model", lambda *what: given.append(what) or entry)
    called = call("models", "import", "source", "--scale", NAME, "--out", "mine")
    assert given == [(Path("source"), NAME, Path("mine"))]
    assert called.err.splitlines() == [
        "12.3 MB, 6,000,000 parameters in mine",
        f"use it: moebench run --system smoe --model {NAME} --weights mine --machine a6000",
    ]
    refusal = refused("models", "import", "source", "--scale", NAME, "--dtype", "fp32")
    assert "--dtype and --scale: a scale model is stored as fp16" in refusal


def test_imported_weights_are_said_with_their_records(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(here / "deep" / "source")
    parts = [here / name for name in ("a", "b", "records")]
    for file, size in zip(parts, (1000, 2000, 9_000_000), strict=True):
        file.write_bytes(b"0" * size)
    found = SimpleNamespace(
        store=SimpleNamespace(total_bytes=4_200_000, record_bytes=600_000), files=parts,
        manifest=SimpleNamespace(records=[0] * 7),
    )  # fmt: skip
    given: list[Any] = []
    monkeypatch.setattr(imported, "import_checkpoint", lambda *what: given.append(what) or found)
    called = call("models", "import", "deep/source", "--dtype", "bf16")
    assert given[0][:3] == (Path("deep/source"), Path(".moebench/weights/source"), "bf16")
    assert [line for line in called.err.splitlines() if "MB" in line] == [
        "7 expert records of 0.6 MB (bf16) and the common weights, 0.004203 GB, in "
        ".moebench/weights/source"
    ]
    assert "--weights .moebench/weights/source --machine local --capacity 0.25" in called.err
    call("models", "import", "deep/source", "--out", "x")
    assert given[1][1:3] == (Path("x"), "fp32")
    assert "--dtype fp8: allowed: bf16, fp16, fp32" in refused(
        "models", "import", "deep/source", "--dtype", "fp8"
    )


def test_a_download_is_said_with_its_next_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(hub, "fetch", lambda *what: given.append(what))
    called = call("models", "fetch", "tiny/olmoe", "--revision", "v2")
    assert called.err.splitlines() == [
        "tiny/olmoe in .moebench/hub/tiny/olmoe",
        "use it: moebench run --system smoe --weights .moebench/hub/tiny/olmoe --machine local "
        "--capacity 0.25",
        "or split it once, so that later starts are short: moebench models import "
        ".moebench/hub/tiny/olmoe",
    ]
    assert call("models", "fetch", "tiny/olmoe", "--out", "x").err.startswith("tiny/olmoe in x\n")
    assert given == [
        ("tiny/olmoe", Path(".moebench/hub/tiny/olmoe"), "v2"), ("tiny/olmoe", Path("x"), None),
    ]  # fmt: skip


def test_imported_weights_are_verified(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "weights").mkdir()
    (here / "weights" / "import.json").write_text("{}")
    steps: list[Any] = []

    class Found:
        manifest = SimpleNamespace(files=[1, 2], records=[1, 2, 3])

        def __init__(self, path: Path) -> None:
            steps.append(path)

        def verify(self, progress: Any) -> None:
            progress(1, 2)
            steps.append("verified")

    monkeypatch.setattr(imported, "Imported", Found)
    called = call("models", "verify", "weights")
    assert called.err.splitlines()[-1] == "2 files and 3 records are what was imported"
    assert "verify weights: 1/2" in called.err
    assert call("models", "verify", "weights", "--json").json == {
        "weights": {"files": 2, "records": 3}
    }
    assert steps == [Path("weights"), "verified"] * 2


def test_progress_of_a_training_is_a_line_every_fifty_steps() -> None:
    err = io.StringIO()
    with contextlib.redirect_stderr(err), models._progress("smoe") as report:
        for step in (1, 49, 50, 51, 100, 119, 120):
            report(Progress(step, 120, 10, 2.0, 1234.4))
    assert err.getvalue().splitlines() == [
        f"step {step}/120 loss 2.000 1234 tokens/s" for step in (50, 100, 120)
    ]


def test_progress_of_a_training_is_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    terminal = Console(file=shown, force_terminal=True, width=120)
    monkeypatch.setattr(models.console, "stderr", lambda: terminal)
    with models._progress("smoe") as report:
        report(Progress(30, 120, 10, 2.3456, 1234.4))
    drawn = Text.from_ansi(shown.getvalue()).plain
    assert "smoe loss 2.346 1,234 tokens/s" in drawn
    assert "30/120" in drawn


# --------------------------------------------------------------------------- train


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, here: Path) -> list[Any]:
    """What a training was given, without training."""
    (here / "data").mkdir()
    given: list[Any] = []

    def train(*what: Any) -> dict[str, float]:
        given.append(what[:-1])
        return {"held_out_loss": 2.5, "unigram_loss": 5.5}

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    return given


def test_a_first_training_has_the_typed_recipe(trained: list[Any]) -> None:
    called = call(
        "models", "train", NAME, "--data-dir", "data", "--tokens", "5000", "--seed", "3",
        "--balance", "0.2", "--threads", "2",
    )  # fmt: skip
    recipe = TrainingRecipe(tokens=5000, seed=3, balance=0.2, balance_end=0.1)
    assert trained == [2, (NAME, Path("data"), Path(OWN), recipe, None, "cpu")]
    assert called.err.splitlines() == [
        f"{NAME}: reading data",
        f"held-out loss 2.5, a unigram's 5.5; in {OWN}",
        f"use it: moebench run --system smoe --model {NAME} --weights {OWN} --machine a6000",
    ]
    trained.clear()
    call("models", "train", NAME, "--data-dir", "data", "--out", "x")
    assert trained == [1, (NAME, Path("data"), Path("x"), TrainingRecipe(tokens=4_000_000), None,
                           "cpu")]  # fmt: skip


def test_a_second_training_follows_the_first(here: Path, trained: list[Any]) -> None:
    (here / "first").mkdir()
    first = {"recipe": {"seed": 7, "tokens": 9000}}
    (here / "first" / "training.json").write_text(json.dumps(first))
    options = ("models", "train", NAME, "--data-dir", "data", "--from", "first")
    assert call(*options).code == 0
    _, _, out, recipe, start, _ = trained[1]
    assert (out, start) == (Path(f"{OWN}-local"), Path("first"))
    assert recipe == TrainingRecipe(
        seed=7, text_tokens=9000, learning_rate=2e-3, warmup_steps=20, chunk=600,
        checkpoint_every=100, **LOCALITY[NAME], balance_end=LOCALITY[NAME]["balance"],
    )  # fmt: skip
    assert call(*options, "--balance", "0.3", "--out", "x").code == 0
    _, _, out, recipe, _, _ = trained[3]
    assert (out, recipe.balance, recipe.balance_end) == (Path("x"), 0.3, 0.3)
    (here / "first" / "training.json").unlink()
    assert call(*options).code == 0
    assert trained[5][3].text_tokens == TrainingRecipe().tokens


def test_a_training_on_a_card_needs_one(
    monkeypatch: pytest.MonkeyPatch, trained: list[Any]
) -> None:
    options = ("models", "train", NAME, "--data-dir", "data", "--device", "cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "--device cuda: torch finds no CUDA device here" in refused(*options)
    assert trained == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert call(*options).code == 0
    assert trained[1][-1] == "cuda"


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
